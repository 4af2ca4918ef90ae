// Products of bytes with the vectors every aarch64 has: widened to 16 bits and multiplied there. Included after
// simd_neon.h.
#include "cpu/isa/packed.h"

constexpr int kDotRows = 2;
template <int Bits>
constexpr int kDotVectors = 1;
constexpr int kLoneRowVectors = 1;

using DotInput = int16x4_t;
template <int Bits>
struct DotWeights {
  int16x4_t column[4];  // the four numbers of each
};
template <int Bits>
struct DotSum {
  int32x4_t column[4];  // four parts of each one's sum
};

inline DotInput dot_input(const std::int8_t* p) {
  std::uint32_t four;
  __builtin_memcpy(&four, p, sizeof four);
  return vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(four))));
}
template <int Bits>
[[gnu::always_inline]] inline DotWeights<Bits> dot_weights(Packed bytes) {
  const uint8x16_t all = vreinterpretq_u8_u32(bytes);
  const int16x8_t low = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(all)));
  const int16x8_t high = vreinterpretq_s16_u16(vmovl_u8(vget_high_u8(all)));
  return {{vget_low_s16(low), vget_high_s16(low), vget_low_s16(high), vget_high_s16(high)}};
}
template <int Bits, bool Centred>
[[gnu::always_inline]] inline DotSum<Bits> dot_begin(std::int32_t) {
  const int32x4_t zero = vdupq_n_s32(0);
  return {{zero, zero, zero, zero}};
}
template <int Bits>
[[gnu::always_inline]] inline void dot_add(DotSum<Bits>& sum, const DotWeights<Bits>& w, DotInput x) {
#pragma GCC unroll 4
  for (int n = 0; n < 4; ++n) sum.column[n] = vmlal_s16(sum.column[n], w.column[n], x);
}
// What was begun at 0 and should have begun at `start` times 2^(Bits-1).
template <int Bits, bool Centred>
[[gnu::always_inline]] inline V dot_end(const DotSum<Bits>& sum, std::int32_t start) {
  int32x4_t total = vpaddq_s32(vpaddq_s32(sum.column[0], sum.column[1]), vpaddq_s32(sum.column[2], sum.column[3]));
  if constexpr (Centred) total = vaddq_s32(total, vdupq_n_s32(start * (1 << (Bits - 1))));
  return vcvtq_f32_s32(total);
}
