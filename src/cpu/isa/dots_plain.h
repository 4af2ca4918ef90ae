// Products of bytes as floats, which hold all of them and their sums over a run exactly: below 2^24. Included after
// simd_scalar.h.
#include "cpu/isa/packed.h"

constexpr int kDotRows = 4;
template <int Bits>
constexpr int kDotVectors = 1;
constexpr int kLoneRowVectors = 1;

struct DotInput {
  V x[4];
};
template <int Bits>
struct DotWeights {
  V numbers[4];  // the first of each four, the second...
};
template <int Bits>
struct DotSum {
  V sum;
};

inline DotInput dot_input(const std::int8_t* p) {
  return {{set1(p[0]), set1(p[1]), set1(p[2]), set1(p[3])}};
}
template <int Bits>
[[gnu::always_inline]] inline DotWeights<Bits> dot_weights(Packed bytes) {
  using Whole [[gnu::vector_size(4 * kLanes)]] = std::int32_t;
  using Numbers [[gnu::vector_size(4 * kLanes)]] = float;
  DotWeights<Bits> w;
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    const Packed number = bytes >> (8 * k) & 255U;
    const auto floats = __builtin_convertvector(reinterpret_cast<Whole>(number), Numbers);
    __builtin_memcpy(&w.numbers[k], &floats, sizeof floats);
  }
  return w;
}
// The sum starts at `start` times 2^(Bits-1), or at 0.
template <int Bits, bool Centred>
[[gnu::always_inline]] inline DotSum<Bits> dot_begin(std::int32_t start) {
  return {set1(Centred ? static_cast<float>(start * (1 << (Bits - 1))) : 0.0F)};
}
template <int Bits>
[[gnu::always_inline]] inline void dot_add(DotSum<Bits>& sum, const DotWeights<Bits>& w, const DotInput& x) {
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) sum.sum = fma(w.numbers[k], x.x[k], sum.sum);
}
template <int Bits, bool Centred>
[[gnu::always_inline]] inline V dot_end(const DotSum<Bits>& sum, std::int32_t) {
  return sum.sum;
}
