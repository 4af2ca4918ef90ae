// Products of bytes without VNNI: VPMADDUBSW makes sums of two products, which must fit 16 bits. Bytes of x are at most
// 127, so numbers of four bits leave room for eight such sums and those of six for one; bytes are taken as two nibbles.
// Included after integers_avx2.h or integers_avx512.h.
// clang-format off: in this order
#include "cpu/isa/packed.h"
#include "cpu/isa/dot_input.h"
// clang-format on

template <int Bits>
constexpr int kDotVectors = Bits == 8 ? 1 : 2;
constexpr int kLoneRowVectors = 2;

template <int Bits>
struct DotWeights {
  Integers bytes;
};
template <>
struct DotWeights<8> {
  Integers low, high;
};
template <int Bits>
struct DotSum {
  Integers sum;  // of 16 bits each for four bits, else of 32
};
template <>
struct DotSum<8> {
  Integers low, high;  // of 16 bits each
};

template <int Bits>
[[gnu::always_inline]] inline DotWeights<Bits> dot_weights(Packed bytes) {
  if constexpr (Bits == 8)
    return {reinterpret_cast<Integers>(bytes & 0x0F0F0F0FU), reinterpret_cast<Integers>(bytes >> 4 & 0x0F0F0F0FU)};
  else
    return {reinterpret_cast<Integers>(bytes)};
}
template <int Bits, bool Centred>
[[gnu::always_inline]] inline DotSum<Bits> dot_begin(std::int32_t) {
  if constexpr (Bits == 8)
    return {zeros(), zeros()};
  else
    return {zeros()};
}
template <int Bits>
[[gnu::always_inline]] inline void dot_add(DotSum<Bits>& sum, const DotWeights<Bits>& w, DotInput x) {
  if constexpr (Bits == 8) {
    sum.low = add_16(sum.low, multiply_bytes(w.low, x));
    sum.high = add_16(sum.high, multiply_bytes(w.high, x));
  } else if constexpr (Bits == 4) {
    sum.sum = add_16(sum.sum, multiply_bytes(w.bytes, x));
  } else {
    const Integers two = multiply_bytes(w.bytes, x);
    sum.sum = add_32(sum.sum, multiply_16(two, set_16(1)));
  }
}
// What was begun at 0 and should have begun at `start` times 2^(Bits-1).
template <int Bits, bool Centred>
[[gnu::always_inline]] inline V dot_end(const DotSum<Bits>& sum, std::int32_t start) {
  Integers total;
  if constexpr (Bits == 8)
    total = add_32(multiply_16(sum.low, set_16(1)), multiply_16(sum.high, set_16(16)));
  else if constexpr (Bits == 4)
    total = multiply_16(sum.sum, set_16(1));
  else
    total = sum.sum;
  if constexpr (Centred) total = add_32(total, shift_left<Bits - 1>(set_32(start)));
  return to_floats(total);
}
