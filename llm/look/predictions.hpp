// Logits as probabilities, and the likeliest tokens of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attend/llm/look.hpp"

namespace attend::llm {

std::vector<double> probabilities(std::span<const float> logits);
// KL(before || after) in nats; NaN where one of them has no finite logit.
double divergence(std::span<const float> before, std::span<const float> after);
// Falling; of equals the smaller id first.
std::vector<NextToken> likeliest(const Tokenizer& tokenizer, std::span<const double> probabilities, std::int64_t count);

}  // namespace attend::llm
