// Counter-based random numbers: a function of key and counter, so the same bits whatever the threads.
#pragma once

#include <array>
#include <cstdint>

namespace attend {

// Philox4x32-10 (Salmon et al. 2011).
std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::uint64_t key);

// The 32 random bits that decide whether dropout keeps the weight of query i and key j: word j % 4 of
// philox({j / 4, i, head, batch}, seed). The weight is kept when they are >= threshold.
std::uint32_t dropout_bits(std::uint64_t seed, std::int64_t batch, std::int64_t head, std::int64_t i, std::int64_t j);
std::uint32_t dropout_threshold(double probability);  // probability * 2^32, rounded

// The bits that decide whether dropout of a tensor keeps its element number `index`: word index % 4 of
// philox({index / 4, index / 2^34, kElementDropout...}, seed). Kept when they are >= threshold.
inline constexpr std::uint32_t kElementDropout[] = {2, 0xffffffffU};
std::uint32_t element_dropout_bits(std::uint64_t seed, std::uint64_t index);

// Uniform in [0, 1), 24 bits, number `index` of stream `key`.
double uniform(std::uint64_t key, std::uint64_t index);
// Standard normal (Box-Muller).
double normal(std::uint64_t key, std::uint64_t index);

}  // namespace attend
