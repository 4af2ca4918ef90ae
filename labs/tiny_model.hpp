// A language model small enough to train within a lab: an embedding, transformer blocks, a head, and Adam.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attend/transformer_block.hpp"

namespace attend::labs {

inline constexpr std::int64_t kNoTarget = -100;

struct TinyShape {
  std::int64_t vocabulary = 0, width = 0, layers = 1, heads = 1, kv_heads = 0, hidden = 0;
  bool rope = true;
  double rope_theta = 100;  // short texts: fast rotations tell neighbours apart
  AttentionOptions options{.mask = causal()};
  std::uint64_t seed = 1;
};

// Tokens of `batch` rows, one after the other; targets alike, kNoTarget where nothing is asked.
struct TinyBatch {
  std::int64_t batch = 0;
  std::vector<std::int64_t> tokens, targets;
};

class TinyModel {
 public:
  explicit TinyModel(const TinyShape& shape);

  double train(const TinyBatch& batch, double rate);  // one step of Adam; the mean loss before it
  double loss(const TinyBatch& batch) const;
  double accuracy(const TinyBatch& batch) const;  // of the targets: how many had the largest logit
  // What layer n reads, [B, 1, L, width]; n = layers: what the last one wrote.
  Tensor states(const TinyBatch& batch, std::int64_t n) const;
  Tensor weights(const TinyBatch& batch, std::int64_t layer) const;  // [B, heads, L, L]
  // Every token's vector after each part: before layer n's attention, and what each of its heads adds, [B, H, L,
  // width].
  Tensor head_outputs(const TinyBatch& batch, std::int64_t layer) const;

  void knock_out(std::int64_t layer, std::int64_t head);  // zeroes what W_O makes of it
  TinyModel clone() const;
  const TinyShape& shape() const { return shape_; }
  std::int64_t parameter_count() const;
  std::vector<Tensor*> parameters();

 private:
  std::int64_t length_of(const TinyBatch& batch) const;
  Tensor hidden(const TinyBatch& batch, std::vector<Tensor>* inputs) const;  // behind the last norm
  Tensor normed(const Tensor& x, const Tensor& weight) const;

  TinyShape shape_;
  Tensor table_, norm_, head_;
  std::vector<TransformerBlock> blocks_;
  std::vector<Tensor> first_, second_;  // Adam's means
  std::int64_t steps_ = 0;
};

}  // namespace attend::labs
