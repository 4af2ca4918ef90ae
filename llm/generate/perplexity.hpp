// How well a model predicts a text.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "llm/model/model.hpp"

namespace attend::llm {

struct Perplexity {
  double loss = 0;        // mean of -log p(token), in nats
  double perplexity = 0;  // exp(loss)
  double error = 0;       // of the perplexity: its standard error over tokens
  std::int64_t predicted = 0;
};

inline constexpr std::int64_t kLogitRows = 64;  // whose logits are held at once

// The text is cut into windows of `length` tokens that begin afresh; in each, every token but the first is predicted.
Perplexity perplexity(Model& model, std::span<const Token> tokens, std::int64_t length, const CacheOptions& cache,
                      const std::function<void(std::int64_t)>& progress = {});

}  // namespace attend::llm
