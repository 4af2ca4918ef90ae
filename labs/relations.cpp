// A task made of two known relations.
#include "labs/relations.hpp"

#include "base/random.hpp"

namespace attend::labs {

TinyBatch relation_batch(std::int64_t batch, std::int64_t length, std::uint64_t seed) {
  TinyBatch b{batch, {}, {}};
  for (std::int64_t n = 0; n < batch * length; ++n) {
    const std::int64_t i = n % length;
    b.tokens.push_back(
        static_cast<std::int64_t>(uniform(seed, static_cast<std::uint64_t>(n)) * static_cast<double>(kRelationTokens)));
    const auto back = [&](std::int64_t places) { return b.tokens[static_cast<std::size_t>(n - places)]; };
    b.targets.push_back(i < kFar ? kNoTarget : back(kNear) * kRelationTokens + back(kFar));
  }
  return b;
}

}  // namespace attend::labs
