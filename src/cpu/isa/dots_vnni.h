// Products of bytes by VPDPBUSD: four unsigned weights times four signed numbers of x, added to an int32. Included
// after integers_avx512.h.
// clang-format off: in this order
#include "cpu/isa/packed.h"
#include "cpu/isa/dot_input.h"
// clang-format on

constexpr int kDotRows = 6;  // 6 x 2 sums, as many floats, 2 vectors of weights and 1 broadcast: 27 of 32 registers
template <int Bits>
constexpr int kDotVectors = 2;
constexpr int kLoneRowVectors = 4;

template <int Bits>
struct DotWeights {
  Integers bytes;
};
template <int Bits>
struct DotSum {
  Integers sum;
};

template <int Bits>
[[gnu::always_inline]] inline DotWeights<Bits> dot_weights(Packed bytes) {
  return {reinterpret_cast<Integers>(bytes)};
}
// The sum starts at `start` times 2^(Bits-1), or at 0.
template <int Bits, bool Centred>
[[gnu::always_inline]] inline DotSum<Bits> dot_begin(std::int32_t start) {
  if constexpr (Centred)
    return {shift_left<Bits - 1>(set_32(start))};
  else
    return {zeros()};
}
template <int Bits>
[[gnu::always_inline]] inline void dot_add(DotSum<Bits>& sum, const DotWeights<Bits>& w, DotInput x) {
  sum.sum = _mm512_dpbusd_epi32(sum.sum, w.bytes, x);
}
template <int Bits, bool Centred>
[[gnu::always_inline]] inline V dot_end(const DotSum<Bits>& sum, std::int32_t) {
  return to_floats(sum.sum);
}
