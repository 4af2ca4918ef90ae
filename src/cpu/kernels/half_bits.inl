// One element of a half format at a time, for the ends of rows that do not fill a vector.

inline float bf16_to_float(const void* p) {
  std::uint16_t half;
  __builtin_memcpy(&half, p, sizeof half);
  const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

inline void float_to_bf16(float x, void* p) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  if (x != x) {
    bits |= 0x400000U;
  } else {
    bits += 0x7FFFU + ((bits >> 16) & 1U);  // round to nearest even
  }
  const auto half = static_cast<std::uint16_t>(bits >> 16);
  __builtin_memcpy(p, &half, sizeof half);
}

inline float f16_to_float(const void* p) {
  std::uint16_t half;
  __builtin_memcpy(&half, p, sizeof half);
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  const std::uint32_t rest = half & 0x7FFFU;
  std::uint32_t bits;
  if (rest >= 0x7C00U) {  // inf or NaN
    bits = sign | 0x7F800000U | ((rest & 0x3FFU) << 13) | (rest > 0x7C00U ? 0x400000U : 0U);
  } else if (rest >= 0x400U) {
    bits = sign | ((rest << 13) + (112U << 23));
  } else {  // subnormal: rest * 2^-24, exact in f32
    const float magnitude = static_cast<float>(rest) * 5.9604644775390625e-8F;
    __builtin_memcpy(&bits, &magnitude, sizeof bits);
    bits |= sign;
  }
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

inline void float_to_f16(float x, void* p) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t rest = bits & 0x7FFFFFFFU;
  std::uint32_t half;
  if (rest > 0x7F800000U) {
    half = 0x7E00U | ((rest >> 13) & 0x3FFU);
  } else if (rest >= 0x47800000U) {  // 65536 and up
    half = 0x7C00U;
  } else if (rest >= 0x38800000U) {  // normal: round to nearest even, may carry into inf
    half = (rest - (112U << 23) + 0xFFFU + ((rest >> 13) & 1U)) >> 13;
  } else {  // subnormal: adding 0.5 puts the last kept bit at the end of the mantissa, so the sum rounds it
    float magnitude;
    __builtin_memcpy(&magnitude, &rest, sizeof magnitude);
    magnitude += 0.5F;
    std::uint32_t sum;
    __builtin_memcpy(&sum, &magnitude, sizeof sum);
    half = sum - 0x3F000000U;
  }
  const auto out = static_cast<std::uint16_t>(sign | half);
  __builtin_memcpy(p, &out, sizeof out);
}
