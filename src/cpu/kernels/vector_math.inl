// exp2 and tanh on vectors.

constexpr float kLog2e = 1.4426950408889634F;
constexpr float kLn2 = 0.6931471805599453F;
constexpr float kInfinity = __builtin_inff();

// 2^t = 2^n * 2^r with n whole and |r| <= 1/2; a degree-6 fit of 2^r (relative error 2e-9) leaves only roundings,
// under 2 ULP in all. -inf gives 0; NaN stays NaN, because max returns its second operand then.
inline V exp2(V t) {
  t = max(set1(-200.0F), t);
  const V n = round(t);
  const V r = sub(t, n);
  V p = fma(r, set1(1.5461444699e-4F), set1(1.3400428178e-3F));
  p = fma(r, p, set1(9.6180566785e-3F));
  p = fma(r, p, set1(5.5503272267e-2F));
  p = fma(r, p, set1(2.4022650922e-1F));
  p = fma(r, p, set1(6.931472067e-1F));
  p = fma(r, p, set1(1.0F));
  return times_power_of_two(p, n);
}

inline float exp2_one(float t) {
  float lanes[kLanes];
  store(lanes, exp2(set1(t)));
  return lanes[0];
}

// tanh|x| = e / (e + 2) with e = exp(2|x|) - 1 made without cancellation: e = 2^n * q + (2^n - 1), q = exp(r) - 1.
inline V tanh(V x) {
  const V y = min(set1(20.0F), mul(set1(2.0F), abs(x)));  // tanh(10) is 1 in f32; NaN stays NaN
  const V n = round(mul(y, set1(kLog2e)));
  V r = fnma(n, set1(0.693359375F), y);  // ln 2 in two parts, so that r keeps its low bits
  r = fnma(n, set1(-2.12194440e-4F), r);
  V q = fma(r, set1(1.3933647863e-3F), set1(8.3691539597e-3F));
  q = fma(r, q, set1(4.1666464945e-2F));
  q = fma(r, q, set1(1.6666505211e-1F));
  q = fma(r, q, set1(5.0000000135e-1F));
  q = fma(r, mul(r, q), r);
  const V power = times_power_of_two(set1(1.0F), n);
  const V e = fma(power, q, sub(power, set1(1.0F)));
  return copy_sign(div(e, add(e, set1(2.0F))), x);
}
