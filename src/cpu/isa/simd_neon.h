// Four floats at a time: the vectors every aarch64 has. Included by one source file alone, inside its anonymous
// namespace.
using V = float32x4_t;
using Mask = uint32x4_t;
constexpr int kLanes = 4;
constexpr int kTileRows = 6;  // 6 x 4 accumulators, 4 vectors of b and 1 broadcast: 29 of 32 registers
constexpr int kTileVectors = 4;

// What memory is read and written as: at any address, whatever was put there. (memcpy would go through integer
// registers.)
using FloatsAnywhere [[gnu::may_alias, gnu::aligned(1)]] = float32x4_t;
using HalvesAnywhere [[gnu::may_alias, gnu::aligned(1)]] = uint16x4_t;

inline V load(const float* p) {
  return *reinterpret_cast<const FloatsAnywhere*>(p);
}
inline void store(float* p, V x) {
  *reinterpret_cast<FloatsAnywhere*>(p) = x;
}
inline V set1(float x) {
  return vdupq_n_f32(x);
}
inline V add(V a, V b) {
  return vaddq_f32(a, b);
}
inline V sub(V a, V b) {
  return vsubq_f32(a, b);
}
inline V mul(V a, V b) {
  return vmulq_f32(a, b);
}
inline V div(V a, V b) {
  return vdivq_f32(a, b);
}
inline V reciprocal(V x) {
  return vdivq_f32(vdupq_n_f32(1.0F), x);
}
inline V fma(V a, V b, V c) {
  return vfmaq_f32(c, a, b);
}  // a * b + c
inline V fnma(V a, V b, V c) {
  return vfmsq_f32(c, a, b);
}  // c - a * b
// Not vmaxq and vminq, whose result is NaN whichever operand is.
inline V max(V a, V b) {
  return vbslq_f32(vcgtq_f32(a, b), a, b);
}  // b if either is NaN
inline V min(V a, V b) {
  return vbslq_f32(vcltq_f32(a, b), a, b);
}  // b if either is NaN
inline V abs(V a) {
  return vabsq_f32(a);
}
inline V copy_sign(V magnitude, V sign) {
  return vbslq_f32(vdupq_n_u32(0x80000000U), sign, magnitude);
}
inline Mask less(V a, V b) {
  return vcltq_f32(a, b);
}
inline Mask equal(V a, V b) {
  return vceqq_f32(a, b);
}
inline bool any(Mask m) {
  return vmaxvq_u32(m) != 0;
}
inline std::uint64_t bits(Mask m) {
  const uint32x4_t places = {1, 2, 4, 8};
  return vaddvq_u32(vandq_u32(m, places));
}  // bit n is lane n
inline bool all(Mask m) {
  return vminvq_u32(m) != 0;
}
inline V select(Mask m, V a, V b) {
  return vbslq_f32(m, a, b);
}  // m ? a : b
inline V add_where(Mask m, V a, V b) {
  return vaddq_f32(a, vreinterpretq_f32_u32(vandq_u32(m, vreinterpretq_u32_f32(b))));
}  // m ? a + b : a
inline V round(V x) {
  return vrndnq_f32(x);
}
inline V times_power_of_two(V x, V n) {  // n whole; at -127 and below the factor is 0, from 128 on inf
  const V bounded = min(set1(128.0F), max(set1(-127.0F), n));
  const int32x4_t biased = vaddq_s32(vcvtq_s32_f32(bounded), vdupq_n_s32(127));
  return vmulq_f32(x, vreinterpretq_f32_s32(vshlq_n_s32(biased, 23)));
}
inline V iota() {
  return V{0, 1, 2, 3};
}
inline float reduce_max(V x) {
  const V y = max(x, vextq_f32(x, x, 2));
  return vgetq_lane_f32(max(y, vextq_f32(y, y, 1)), 0);
}
inline float reduce_add(V x) {
  return vaddvq_f32(x);
}

inline V load_int8(const std::int8_t* p) {
  std::uint32_t four;
  __builtin_memcpy(&four, p, sizeof four);
  const int16x8_t wide = vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(four)));
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
}
inline V load_uint8(const std::uint8_t* p) {
  std::uint32_t four;
  __builtin_memcpy(&four, p, sizeof four);
  const uint16x8_t wide = vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four)));
  return vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide)));
}
inline void store_int8(std::int8_t* p, V x) {  // x whole, from -128 to 127
  const int16x4_t halves = vmovn_s32(vcvtq_s32_f32(x));
  const std::uint32_t four = vget_lane_u32(vreinterpret_u32_s8(vmovn_s16(vcombine_s16(halves, halves))), 0);
  __builtin_memcpy(p, &four, sizeof four);
}
inline V load_f16(const void* p) {
  return vcvt_f32_f16(vreinterpret_f16_u16(*static_cast<const HalvesAnywhere*>(p)));
}
inline void store_f16(void* p, V x) {
  *static_cast<HalvesAnywhere*>(p) = vreinterpret_u16_f16(vcvt_f16_f32(x));
}
inline V load_bf16(const void* p) {
  return vreinterpretq_f32_u32(vshll_n_u16(*static_cast<const HalvesAnywhere*>(p), 16));
}
inline void store_bf16(void* p, V x) {  // round to nearest even; NaN stays NaN
  const uint32x4_t bits = vreinterpretq_u32_f32(x);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7FFF)));
  const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
  *static_cast<HalvesAnywhere*>(p) = vshrn_n_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet), 16);
}

// Numbers 0, 2, 4, 6 and 1, 3, 5, 7 of the eight in a and b, and back.
inline void split_pairs(V a, V b, V& even, V& odd) {
  even = vuzp1q_f32(a, b);
  odd = vuzp2q_f32(a, b);
}
inline void join_pairs(V even, V odd, V& a, V& b) {
  a = vzip1q_f32(even, odd);
  b = vzip2q_f32(even, odd);
}

// Row r of the block becomes column r.
inline void transpose(V (&x)[kLanes]) {
  const V a = vzip1q_f32(x[0], x[2]), b = vzip2q_f32(x[0], x[2]);
  const V c = vzip1q_f32(x[1], x[3]), d = vzip2q_f32(x[1], x[3]);
  x[0] = vzip1q_f32(a, c);
  x[1] = vzip2q_f32(a, c);
  x[2] = vzip1q_f32(b, d);
  x[3] = vzip2q_f32(b, d);
}

// Number j of four rows into x[j].
inline void load_four_columns(const float* p, std::int64_t row, V (&x)[kLanes]) {
  for (int i = 0; i < kLanes; ++i) x[i] = load(p + i * row);
  transpose(x);
}
