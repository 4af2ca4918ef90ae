// A task made of two known relations, to train small models on: what stood one place back, and what three.
#pragma once

#include <cstdint>

#include "labs/tiny_model.hpp"

namespace attend::labs {

inline constexpr std::int64_t kRelationTokens = 6;
inline constexpr std::int64_t kRelationClasses = kRelationTokens * kRelationTokens;
inline constexpr std::int64_t kNear = 1, kFar = 3;  // places back

// Random tokens below kRelationTokens; the target at i is tokens[i - kNear] * kRelationTokens + tokens[i - kFar]. One
// part of it cannot be had without the other, and neither from the token itself.
TinyBatch relation_batch(std::int64_t batch, std::int64_t length, std::uint64_t seed);

}  // namespace attend::labs
