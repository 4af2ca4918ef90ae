// Logits as probabilities, and the likeliest tokens of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attend/llm/look.hpp"

namespace attend::llm {

std::vector<double> probabilities(std::span<const float> logits);
// Falling; of equals the smaller id first.
std::vector<NextToken> likeliest(const Tokenizer& tokenizer, std::span<const double> probabilities, std::int64_t count);

}  // namespace attend::llm
