// Dropout of a row: Philox4x32-10 on sixteen counters at a time, in integers that the compiler puts into vectors.

constexpr std::int64_t kDropCounters = 16;
constexpr std::int64_t kDropBlock = 4 * kDropCounters;  // elements

// One of the ten rounds. The arrays are apart, which the compiler must know to use vectors.
inline void philox_round(std::uint32_t* __restrict x0, std::uint32_t* __restrict x1, std::uint32_t* __restrict x2,
                         std::uint32_t* __restrict x3, std::uint32_t k0, std::uint32_t k1) {
  for (std::int64_t l = 0; l < kDropCounters; ++l) {
    const std::uint64_t a = std::uint64_t{0xD2511F53U} * x0[l], b = std::uint64_t{0xCD9E8D57U} * x2[l];
    x0[l] = static_cast<std::uint32_t>(b >> 32) ^ x1[l] ^ k0;
    x1[l] = static_cast<std::uint32_t>(b);
    x2[l] = static_cast<std::uint32_t>(a >> 32) ^ x3[l] ^ k1;
    x3[l] = static_cast<std::uint32_t>(a);
  }
}

// The bits of elements [first, first + kDropBlock), first a multiple of 4: element_dropout_bits of base/random.hpp.
inline void dropout_block(std::uint64_t first, std::uint64_t seed, std::uint32_t* bits) {
  std::uint32_t x0[kDropCounters], x1[kDropCounters], x2[kDropCounters], x3[kDropCounters];
  for (std::int64_t l = 0; l < kDropCounters; ++l) {
    const std::uint64_t counter = first / 4 + static_cast<std::uint64_t>(l);
    x0[l] = static_cast<std::uint32_t>(counter);
    x1[l] = static_cast<std::uint32_t>(counter >> 32);
    x2[l] = kElementDropout[0];
    x3[l] = kElementDropout[1];
  }
  auto k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
#pragma GCC unroll 1
  for (int n = 0; n < 10; ++n, k0 += 0x9E3779B9U, k1 += 0xBB67AE85U) philox_round(x0, x1, x2, x3, k0, k1);
  for (std::int64_t l = 0; l < kDropCounters; ++l) {
    bits[4 * l] = x0[l];
    bits[4 * l + 1] = x1[l];
    bits[4 * l + 2] = x2[l];
    bits[4 * l + 3] = x3[l];
  }
}

void dropout_row(const float* x, std::int64_t n, std::uint64_t first, std::uint64_t seed, std::uint32_t threshold,
                 float scale, float* y) {
  std::uint32_t bits[kDropBlock];
  for (std::int64_t i = 0; i < n;) {
    const std::uint64_t element = first + static_cast<std::uint64_t>(i), block = element / 4 * 4;
    const auto skipped = static_cast<std::int64_t>(element - block);
    const std::int64_t left = n - i, count = left < kDropBlock - skipped ? left : kDropBlock - skipped;
    dropout_block(block, seed, bits);
    const std::uint32_t* own = bits + skipped;
    const float* from = x + i;
    fill_row(count, y + i, [=](std::int64_t j) { return own[j] >= threshold ? from[j] * scale : 0.0F; });
    i += count;
  }
}
