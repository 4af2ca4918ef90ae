// Which token comes next: from logits, by rules that people know, the same for the same seed.
#pragma once

#include <cstdint>
#include <span>

#include "attend/llm/sampling.hpp"
#include "llm/model/config.hpp"

namespace attend::llm {

// What `attend chat` and `attend serve` use where neither the model's files nor the caller state anything. Small models
// repeat themselves without a repetition penalty; with a large one a story cannot say its names again.
inline Sampling default_sampling() {
  return {.temperature = 0.7, .top_p = 0.9, .min_p = 0.05, .repetition_penalty = 1.05};
}

// Each setting as `given`; else as `recommended` by the model's files; else the default. At temperature 0 the model's
// likeliest token is taken: then a repetition penalty applies only if it is given.
Sampling complete_sampling(const SamplingSettings& given, const SamplingSettings& recommended);

// `seen` are the prompt and what was generated, `generated` its last part. The draw is number `index` of the seed's
// stream: it depends on nothing else. Logits that are not finite are never chosen, nor tokens whose `allowed` is 0
// (empty: all may come); if none is left, InvalidArgument.
Choice sample(std::span<const float> logits, const Sampling& sampling, std::span<const Token> seen,
              std::span<const Token> generated, std::uint64_t index, std::span<const std::uint8_t> allowed = {});

// How likely the model holds a token, and which tokens it holds for the likeliest.
Choice rate(std::span<const float> logits, Token token, std::int64_t likeliest);

}  // namespace attend::llm
