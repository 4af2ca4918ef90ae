// Switches as the layers carry them out: what each head does differently.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attend/attention.hpp"
#include "attend/llm/look.hpp"
#include "llm/model/config.hpp"

namespace attend::llm {

struct HeadEdit {
  enum class Output { own, zero, mean };

  bool scaled = true;
  double temperature = 1;
  bool own_mask = true;
  Switch mask{};                                // where it is not the model's own
  std::int64_t hidden_from = 0, hidden_to = 0;  // padding
  bool positions = true;
  Output output = Output::own;

  // Whether one call of attention can do both.
  bool same_scores(const HeadEdit& other) const;
};

// What every head of a model does under some switches.
class Edits {
 public:
  // InvalidArgument for a layer or a head that the model does not have, or what it cannot do.
  Edits(const ModelConfig& config, std::span<const Switch> switches);

  const HeadEdit& of(std::int64_t layer, std::int64_t head) const {
    return heads_[static_cast<std::size_t>(layer * config_.heads + head)];
  }
  bool uniform(std::int64_t layer) const;  // all heads of the layer make their scores alike
  bool adds_positions() const { return adds_positions_; }
  bool all_rotate(std::int64_t layer) const;
  bool none_rotates(std::int64_t layer) const;

  // The layer's `options` for one head, or for all where it is uniform (head -1), over so many keys. `prompt` is how
  // many tokens the run began with: a full mask shows those alone to all.
  AttentionOptions options_for(AttentionOptions options, std::int64_t layer, std::int64_t head, std::int64_t keys,
                               std::int64_t prompt) const;
  // How many keys query i of a run sees, without the first `sinks`.
  std::int64_t visible(std::int64_t layer, std::int64_t head, std::int64_t i, std::int64_t prompt,
                       std::int64_t sinks) const;

 private:
  void apply(const Switch& one);
  HeadEdit& at(std::int64_t layer, std::int64_t head) {
    return heads_[static_cast<std::size_t>(layer * config_.heads + head)];
  }

  ModelConfig config_;
  std::vector<HeadEdit> heads_;
  bool adds_positions_ = true;
};

// The tokens in an order made from the seed; where `fixed` is set they stay.
std::vector<Token> shuffled(std::span<const Token> tokens, const std::vector<bool>& fixed, std::uint64_t seed);

}  // namespace attend::llm
