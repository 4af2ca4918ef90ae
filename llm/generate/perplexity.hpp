// How well a model predicts a text.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "attend/llm/model.hpp"
#include "llm/model/transformer.hpp"

namespace attend::llm {

inline constexpr std::int64_t kLogitRows = 64;  // whose logits are held at once

// -log p(next[i]) by hidden row i of [count, hidden], for each of the `next` tokens.
void token_losses(const Transformer& model, const float* hidden, std::span<const Token> next, std::span<double> losses);

// The text is cut into windows of `length` tokens that begin afresh; in each, every token but the first is predicted.
Perplexity perplexity(Transformer& model, std::span<const Token> tokens, std::int64_t length, const CacheOptions& cache,
                      const std::function<void(std::int64_t)>& progress = {});

}  // namespace attend::llm
