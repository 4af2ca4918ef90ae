// exp2, exp, tanh, the logistic function and the tail of the normal distribution on vectors.

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

// e^r - 1 for |r| <= ln 2 / 2.
inline V exp_minus_one(V r) {
  V q = fma(r, set1(1.3933647863e-3F), set1(8.3691539597e-3F));
  q = fma(r, q, set1(4.1666464945e-2F));
  q = fma(r, q, set1(1.6666505211e-1F));
  q = fma(r, q, set1(5.0000000135e-1F));
  return fma(r, mul(r, q), r);
}
// x - n ln 2, with ln 2 in two parts, so that the difference keeps its low bits: the first has 9 bits, and n few.
inline V without_ln2(V x, V n) {
  return fnma(n, set1(-2.12194440e-4F), fnma(n, set1(0.693359375F), x));
}

// e^x = p * 2^n with n whole: p keeps its digits where e^x itself would leave the range of a float.
struct Power {
  V p, n;
};
inline Power exp_parts(V x) {
  const V n = round(mul(x, set1(kLog2e)));
  return {add(exp_minus_one(without_ln2(x, n)), set1(1.0F)), n};
}
// e^(hi + lo) for an exponent that no single float holds; hi has at most 20 bits, so that its difference is exact.
inline Power exp_parts(V hi, V lo) {
  const V n = round(mul(add(hi, lo), set1(kLog2e)));
  return {add(exp_minus_one(add(without_ln2(hi, n), lo)), set1(1.0F)), n};
}

// Under 2 ULP where the result is a normal number. -inf gives 0, inf gives inf, NaN stays NaN.
inline V exp(V x) {
  const Power e = exp_parts(min(set1(120.0F), max(set1(-120.0F), x)));
  return times_power_of_two(e.p, e.n);
}
// x * 2^n in two steps, where one might leave the range that times_power_of_two has.
inline V scaled(V x, V n) {
  const V half = round(mul(n, set1(0.5F)));
  return times_power_of_two(times_power_of_two(x, half), sub(n, half));
}

// 1 / (1 + e^-x) = m * 2^n, and `other` is 1 minus that, neither by a difference. |x| at most some hundreds.
struct Logistic {
  V m, n, other;
};
inline Logistic logistic(V x) {
  const Power e = exp_parts(sub(set1(0.0F), abs(x)));
  const V small = times_power_of_two(e.p, e.n);
  const V share = div(set1(1.0F), add(set1(1.0F), small));
  const Mask below = less(x, set1(0.0F));
  return {select(below, mul(e.p, share), share), select(below, e.n, set1(0.0F)),
          select(below, share, mul(small, share))};
}

// For 0 <= a <= 15: e^(-a^2 / 2) = p * 2^n, and Phi(-a) = p * 2^n * share with Phi the normal distribution. a^2 has
// more digits than a float, and all of them count where the exponential is small: the square of a rounded to 1/64 is
// exact, and the rest is a product of a small number. tools/fit_normal_tail.py makes the coefficients (relative error
// 3e-7 at most, at the far end).
struct NormalTail {
  V p, n, share;
};
inline NormalTail normal_tail(V a) {
  const V near = mul(round(mul(a, set1(64.0F))), set1(1.0F / 64));
  const V minus_half = set1(-0.5F);
  const Power e = exp_parts(mul(minus_half, mul(near, near)), mul(minus_half, mul(sub(a, near), add(a, near))));
  const V t = div(set1(1.0F), fma(a, set1(0.3F), set1(1.0F)));
  const V w = mul(mul(a, set1(0.3F)), t);  // 1 - t
  V s = fma(w, set1(2.0628639637e-02F), set1(-7.3193078954e-02F));
  s = fma(w, s, set1(7.1198127192e-02F));
  s = fma(w, s, set1(1.0096538144e-02F));
  s = fma(w, s, set1(2.3372816964e-02F));
  s = fma(w, s, set1(-1.3973489085e-01F));
  s = fma(w, s, set1(-8.1019394878e-02F));
  s = fma(w, s, set1(6.1814513946e-01F));
  s = fma(w, s, set1(-8.2980717834e-01F));
  s = fma(w, s, set1(4.9999999827e-01F));
  return {e.p, e.n, mul(t, s)};
}

struct Tanh {
  V value, slope;
};

// tanh|x| = e / (e + 2) with e = exp(2|x|) - 1 made without cancellation: e = 2^n * q + (2^n - 1), q = exp(r) - 1.
// Its slope is 4 (e + 1) / (e + 2)^2: 1 - tanh^2 would leave nothing of it where tanh is nearly 1.
inline Tanh tanh_with_slope(V x) {
  const V y = min(set1(88.0F), mul(set1(2.0F), abs(x)));  // e stays finite; NaN stays NaN
  const V n = round(mul(y, set1(kLog2e)));
  const V q = exp_minus_one(without_ln2(y, n));
  const V power = times_power_of_two(set1(1.0F), n);
  const V e = fma(power, q, sub(power, set1(1.0F)));
  const V part = div(set1(1.0F), add(e, set1(2.0F)));
  return {copy_sign(div(e, add(e, set1(2.0F))), x), mul(mul(add(e, set1(1.0F)), part), mul(set1(4.0F), part))};
}
inline V tanh(V x) {
  return tanh_with_slope(x).value;
}
