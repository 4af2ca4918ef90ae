// Four floats at a time in plain C++: no instruction set named, for any machine. Included inside an anonymous
// namespace.
struct V {
  float x[4];
};
struct Mask {
  bool x[4];
};
constexpr int kLanes = 4;
constexpr int kTileRows = 4;
constexpr int kTileVectors = 2;

template <class F>
inline V each(F&& f) {
  return {{f(0), f(1), f(2), f(3)}};
}
inline V load(const float* p) {
  V r;
  __builtin_memcpy(r.x, p, sizeof r.x);
  return r;
}
inline void store(float* p, V a) {
  __builtin_memcpy(p, a.x, sizeof a.x);
}
inline V set1(float a) {
  return {{a, a, a, a}};
}
inline V add(V a, V b) {
  return each([&](int i) { return a.x[i] + b.x[i]; });
}
inline V sub(V a, V b) {
  return each([&](int i) { return a.x[i] - b.x[i]; });
}
inline V mul(V a, V b) {
  return each([&](int i) { return a.x[i] * b.x[i]; });
}
inline V div(V a, V b) {
  return each([&](int i) { return a.x[i] / b.x[i]; });
}
inline V reciprocal(V a) {
  return each([&](int i) { return 1.0F / a.x[i]; });
}
// Two roundings: a fused one is a library call on machines without the instruction.
inline V fma(V a, V b, V c) {
  return each([&](int i) { return a.x[i] * b.x[i] + c.x[i]; });
}
inline V fnma(V a, V b, V c) {
  return each([&](int i) { return c.x[i] - a.x[i] * b.x[i]; });
}
inline V max(V a, V b) {
  return each([&](int i) { return a.x[i] > b.x[i] ? a.x[i] : b.x[i]; });
}  // b if NaN
inline V min(V a, V b) {
  return each([&](int i) { return a.x[i] < b.x[i] ? a.x[i] : b.x[i]; });
}  // b if NaN
inline V abs(V a) {
  return each([&](int i) { return __builtin_fabsf(a.x[i]); });
}
inline V copy_sign(V magnitude, V sign) {
  return each([&](int i) { return __builtin_copysignf(magnitude.x[i], sign.x[i]); });
}
inline Mask less(V a, V b) {
  return {{a.x[0] < b.x[0], a.x[1] < b.x[1], a.x[2] < b.x[2], a.x[3] < b.x[3]}};
}
inline Mask equal(V a, V b) {
  return {{a.x[0] == b.x[0], a.x[1] == b.x[1], a.x[2] == b.x[2], a.x[3] == b.x[3]}};
}
inline bool any(Mask m) {
  return m.x[0] || m.x[1] || m.x[2] || m.x[3];
}
inline std::uint64_t bits(Mask m) {
  return (m.x[0] ? 1U : 0U) | (m.x[1] ? 2U : 0U) | (m.x[2] ? 4U : 0U) | (m.x[3] ? 8U : 0U);
}  // bit n is lane n
inline bool all(Mask m) {
  return m.x[0] && m.x[1] && m.x[2] && m.x[3];
}
inline V select(Mask m, V a, V b) {
  return each([&](int i) { return m.x[i] ? a.x[i] : b.x[i]; });
}
inline V add_where(Mask m, V a, V b) {
  return each([&](int i) { return m.x[i] ? a.x[i] + b.x[i] : a.x[i]; });
}  // m ? a + b : a
inline V round(V a) {  // exact for |a| < 2^22, which is all exp2 asks for
  constexpr float kShift = 12582912.0F;
  return each([&](int i) { return (a.x[i] + kShift) - kShift; });
}
inline V times_power_of_two(V a, V n) {  // n whole; at -127 and below the factor is 0, from 128 on inf
  return each([&](int i) {
    const float raised = n.x[i] > -127.0F ? n.x[i] : -127.0F;
    const float clamped = raised < 128.0F ? raised : 128.0F;
    const auto bits = static_cast<std::uint32_t>(static_cast<std::int32_t>(clamped) + 127) << 23;
    float factor;
    __builtin_memcpy(&factor, &bits, sizeof factor);
    return a.x[i] * factor;
  });
}
inline V iota() {
  return {{0, 1, 2, 3}};
}
inline float reduce_max(V a) {
  const float x = a.x[0] > a.x[1] ? a.x[0] : a.x[1];
  const float y = a.x[2] > a.x[3] ? a.x[2] : a.x[3];
  return x > y ? x : y;
}
inline float reduce_add(V a) {
  return (a.x[0] + a.x[1]) + (a.x[2] + a.x[3]);
}

struct Halves {
  std::uint16_t x[4];
};
inline Halves load_halves(const void* p) {
  Halves h;
  __builtin_memcpy(h.x, p, sizeof h.x);
  return h;
}
inline V load_int8(const std::int8_t* p) {
  return each([&](int i) { return static_cast<float>(p[i]); });
}
inline V load_uint8(const std::uint8_t* p) {
  return each([&](int i) { return static_cast<float>(p[i]); });
}
inline void store_int8(std::int8_t* p, V a) {  // a whole, from -128 to 127
  for (int i = 0; i < 4; ++i) p[i] = static_cast<std::int8_t>(a.x[i]);
}
inline V load_f16(const void* p) {
  const Halves h = load_halves(p);
  return each([&](int i) { return f16_to_float(h.x[i]); });
}
inline void store_f16(void* p, V a) {
  const Halves h = {{float_to_f16(a.x[0]), float_to_f16(a.x[1]), float_to_f16(a.x[2]), float_to_f16(a.x[3])}};
  __builtin_memcpy(p, h.x, sizeof h.x);
}
inline V load_bf16(const void* p) {
  const Halves h = load_halves(p);
  return each([&](int i) { return bf16_to_float(h.x[i]); });
}
inline void store_bf16(void* p, V a) {
  const Halves h = {{float_to_bf16(a.x[0]), float_to_bf16(a.x[1]), float_to_bf16(a.x[2]), float_to_bf16(a.x[3])}};
  __builtin_memcpy(p, h.x, sizeof h.x);
}

// Numbers 0, 2, 4, 6 and 1, 3, 5, 7 of the eight in a and b, and back.
inline void split_pairs(V a, V b, V& even, V& odd) {
  even = {{a.x[0], a.x[2], b.x[0], b.x[2]}};
  odd = {{a.x[1], a.x[3], b.x[1], b.x[3]}};
}
inline void join_pairs(V even, V odd, V& a, V& b) {
  a = {{even.x[0], odd.x[0], even.x[1], odd.x[1]}};
  b = {{even.x[2], odd.x[2], even.x[3], odd.x[3]}};
}

// Row r of the block becomes column r.
inline void transpose(V (&a)[kLanes]) {
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < i; ++j) {
      const float t = a[i].x[j];
      a[i].x[j] = a[j].x[i];
      a[j].x[i] = t;
    }
}

// Number j of four rows into x[j].
inline void load_four_columns(const float* p, std::int64_t row, V (&x)[kLanes]) {
  for (int i = 0; i < kLanes; ++i) x[i] = load(p + i * row);
  transpose(x);
}
