// One transformer, described by a config: tokens in, hidden rows and logits out.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "attend/attention.hpp"
#include "llm/cache/model_cache.hpp"
#include "llm/model/weights.hpp"
#include "llm/text/tokenizer.hpp"

namespace attend::llm {

// `count` tokens that continue a cached sequence.
struct Continuation {
  std::int64_t sequence, count;
};

// One layer's attention, for who stands in for it: rows [rows, heads, head_dim] of q, k and v before their rotation.
struct LayerAttention {
  std::int64_t layer, rows;
  float *q, *k, *v;
  const RopeTable* rotation;  // of the rows' positions; null without RoPE
  AttentionOptions options;   // the layer's own scale, soft-cap, sinks and slopes, without a mask
  float* mixed;               // [rows, heads, head_dim]: what it has to give
};
using AttentionHook = std::function<void(const LayerAttention&)>;

class Transformer {
 public:
  Transformer(ModelConfig config, ModelWeights weights);
  explicit Transformer(const ModelFiles& files, const LoadProgress& progress = {});

  const ModelConfig& config() const { return config_; }
  const ModelWeights& weights() const { return weights_; }
  std::int64_t bytes() const;  // of weights, in memory

  // Runs the tokens of all continuations, one after the other in `tokens`, through the layers, appending to the cache;
  // gives the last layer's rows after the final norm, [1, 1, tokens, hidden], valid until the next call. A row has the
  // same bits however the sequence was cut into calls and whatever runs beside it. InvalidArgument for a token outside
  // the vocabulary; OutOfPages with nothing changed.
  View forward(std::span<const Token> tokens, std::span<const Continuation> continuations, ModelCache& cache);

  // For models without a cache (BERT): whole sequences, one after the other, each seeing itself alone.
  View encode(std::span<const Token> tokens, std::span<const std::int64_t> lengths);
  // Tokens at positions from `first` on, with `hook` as the attention of every layer: it decides who sees whom, and
  // keeps the keys. `places`: positions that a model adds to its embeddings are added.
  View run(std::span<const Token> tokens, std::int64_t first, bool places, const AttentionHook& hook);
  // One row per sequence, by the config's pooling, of length 1: [sequences, hidden].
  std::vector<float> embed(std::span<const Token> tokens, std::span<const std::int64_t> lengths);

  // Shown each layer's queries, keys and values of the new tokens as attention gets them, [1, heads, tokens, head_dim]
  // in f32, whenever the model runs; {} ends it.
  using LayerObserver = std::function<void(std::int64_t layer, View q, View k, View v)>;
  void observe(LayerObserver observer) { observer_ = std::move(observer); }

  // Frees what the largest batch so far has left allocated; rows that run(), forward() and encode() gave end with it.
  void release_working_memory();

  // hidden rows [1, 1, n, hidden] -> logits [1, 1, n, vocabulary]
  void logits(View rows, MutableView out) const;

 private:
  struct Batch;
  void begin(std::span<const Token> tokens, std::span<const std::int64_t> positions, bool places = true);
  void run_layers(const Batch& batch);
  void attend_layer(const Layer& layer, std::int64_t n, const Batch& batch);
  void mix(const Layer& layer, std::int64_t n, const Batch& batch);
  void keep_sinks(std::int64_t n, const Batch& batch);
  void rotate_sinks(std::int64_t sequence, ModelCache& cache);
  void cached_attention(const Layer& layer, std::int64_t n, const Batch& batch);
  AttentionOptions options_of(const Layer& layer) const;
  void feed_forward_layer(const Layer& layer, std::int64_t rows);
  void feed_forward(const FeedForward& f, const float* x, std::int64_t rows, float* y);
  void experts(const Layer& layer, const float* x, std::int64_t rows, float* y);
  void norm(const Norm& norm, const float* x, float* y, std::int64_t rows) const;
  void rotate(float* x, std::int64_t rows, std::int64_t heads) const;

  ModelConfig config_;
  ModelWeights weights_;
  RopeFrequencies frequencies_;
  Tensor slopes_;  // of ALiBi
  LayerObserver observer_;
  RopeTable rotation_;  // of the batch's positions
  // Working memory, grown to the largest batch seen.
  struct Buffer {
    std::vector<float> floats;
    float* of(std::int64_t count) {
      if (std::ssize(floats) < count) floats.resize(static_cast<std::size_t>(count));
      return floats.data();
    }
  };
  Buffer x_, normed_, q_, k_, v_, mixed_, out_, gate_, up_, half_q_, half_k_, half_v_, half_mixed_;
  Buffer router_, gathered_, expert_out_;
};

// From the same files as the weights.
Tokenizer load_tokenizer(const ModelFiles& files);

}  // namespace attend::llm
