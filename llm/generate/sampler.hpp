// Which token comes next: from logits, by rules that people know, the same for the same seed.
#pragma once

#include <cstdint>
#include <span>

#include "attend/llm/sampling.hpp"

namespace attend::llm {

// `seen` are the prompt and what was generated, `generated` its last part. The draw is number `index` of the seed's
// stream: it depends on nothing else. Logits that are not finite are never chosen, nor tokens whose `allowed` is 0
// (empty: all may come); if none is left, InvalidArgument.
Choice sample(std::span<const float> logits, const Sampling& sampling, std::span<const Token> seen,
              std::span<const Token> generated, std::uint64_t index, std::span<const std::uint8_t> allowed = {});

// How likely the model holds a token, and which tokens it holds for the likeliest.
Choice rate(std::span<const float> logits, Token token, std::int64_t likeliest);

}  // namespace attend::llm
