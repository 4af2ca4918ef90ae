// Counter-based random numbers: Philox4x32-10, and what is drawn from it.
#include "base/random.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace attend {
namespace {

// The last counter word of uniform and normal, a batch number dropout never reaches: the streams do not meet.
constexpr std::uint32_t kDrawn = 0xffffffffU;

std::array<std::uint32_t, 4> draw(std::uint64_t key, std::uint64_t index, std::uint32_t kind) {
  return philox({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), kind, kDrawn}, key);
}

double to_unit(std::uint32_t bits) {
  return static_cast<double>(bits >> 8) * 0x1p-24;
}

}  // namespace

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::uint64_t key) {
  auto [x0, x1, x2, x3] = counter;
  std::uint32_t k0 = static_cast<std::uint32_t>(key);
  std::uint32_t k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53U} * x0;
    const std::uint64_t b = std::uint64_t{0xCD9E8D57U} * x2;
    x0 = static_cast<std::uint32_t>(b >> 32) ^ x1 ^ k0;
    x1 = static_cast<std::uint32_t>(b);
    x2 = static_cast<std::uint32_t>(a >> 32) ^ x3 ^ k1;
    x3 = static_cast<std::uint32_t>(a);
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return {x0, x1, x2, x3};
}

std::uint32_t dropout_bits(std::uint64_t seed, std::int64_t batch, std::int64_t head, std::int64_t i, std::int64_t j) {
  const auto words = philox({static_cast<std::uint32_t>(j / 4), static_cast<std::uint32_t>(i),
                             static_cast<std::uint32_t>(head), static_cast<std::uint32_t>(batch)},
                            seed);
  return words[static_cast<std::size_t>(j % 4)];
}

std::uint32_t element_dropout_bits(std::uint64_t seed, std::uint64_t index) {
  const std::uint64_t counter = index / 4;
  const auto words = philox({static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32),
                             kElementDropout[0], kElementDropout[1]},
                            seed);
  return words[static_cast<std::size_t>(index % 4)];
}

std::uint32_t dropout_threshold(double probability) {
  // A probability next to 1 would round to 2^32, which does not fit.
  return static_cast<std::uint32_t>(std::min(std::round(probability * 0x1p32), 0x1p32 - 1));
}

double uniform(std::uint64_t key, std::uint64_t index) {
  return to_unit(draw(key, index, 0)[0]);
}

double normal(std::uint64_t key, std::uint64_t index) {
  const auto words = draw(key, index, 1);
  const double radius = std::sqrt(-2 * std::log(1 - to_unit(words[0])));  // 1 - u lies in (0, 1]
  return radius * std::cos(2 * std::numbers::pi * to_unit(words[1]));
}

}  // namespace attend
