// Activations and their slopes. Where a result is small it keeps its digits: nothing is made by a difference that
// cancels, and the power of two of an exponential is multiplied in last. docs/numerics.md says how far each may be off.

struct Slope {
  V value, slope;
};

// x * L(v) with L the logistic function and v a function of x: the slope is L (1 + x v' (1 - L)). Where a factor is 0,
// x is clamped before it meets it: 0 times inf would be NaN.
inline V at_least(V x, float least) {  // NaN stays
  return max(set1(least), x);
}
inline V clamped(V x, float most) {
  return min(set1(most), at_least(x, -most));
}
// As long as L is a normal number its power of two may be multiplied in at once: the bits are the same.
inline bool all_near(V v) {
  return all(less(abs(v), set1(80.0F)));
}
struct NearLogistic {
  V value, other;  // other is 1 - value
};
inline NearLogistic near_logistic(V v) {
  const Power e = exp_parts(sub(set1(0.0F), abs(v)));
  const V small = times_power_of_two(e.p, e.n), share = div(set1(1.0F), add(set1(1.0F), small));
  const V rest = mul(small, share);
  const Mask below = less(v, set1(0.0F));
  return {select(below, rest, share), select(below, share, rest)};
}

// Of<Act>: Act::kMost, from where on L is 0 or 1 to every digit, Act::argument(x), which is v, and Act::rate(x), x v'.
template <class Act>
struct TimesLogistic {
  static V value(V x) {
    if (const V v = Act::argument(x); all_near(v)) return mul(x, near_logistic(v).value);
    return far_value(x, logistic(Act::argument(clamped(x, Act::kMost))));
  }
  static Slope with_slope(V x) {
    if (const V v = Act::argument(x); all_near(v)) {
      const NearLogistic l = near_logistic(v);
      return {mul(x, l.value), mul(l.value, fma(Act::rate(x), l.other, set1(1.0F)))};
    }
    const V near = clamped(x, Act::kMost);
    const Logistic l = logistic(Act::argument(near));
    return {far_value(x, l), scaled(mul(l.m, fma(Act::rate(near), l.other, set1(1.0F))), l.n)};
  }

 private:
  static V far_value(V x, const Logistic& l) { return scaled(mul(at_least(x, -Act::kMost), l.m), l.n); }
};

struct Silu : TimesLogistic<Silu> {
  static constexpr float kMost = 120.0F;  // from there on e^-|x| is 0, and so is x e^-|x|
  static V argument(V x) { return x; }
  static V rate(V x) { return x; }
};

struct GeluTanh : TimesLogistic<GeluTanh> {
  static constexpr float kMost = 16.0F;
  static constexpr float kLinear = 1.5957691216F, kCubic = 0.0713548162726F;  // sqrt(8 / pi), and 0.044715 of it
  static V argument(V x) { return mul(x, fma(mul(x, x), set1(kCubic), set1(kLinear))); }
  static V rate(V x) { return mul(x, fma(mul(x, x), set1(3 * kCubic), set1(kLinear))); }
};

struct Gelu {
  static constexpr float kMost = 15.0F;
  static V value_from(V x, const NormalTail& t) {
    const Mask below = less(x, set1(0.0F));
    const V tail = mul(t.p, t.share);
    const V above = sub(set1(1.0F), times_power_of_two(tail, t.n));
    return scaled(mul(at_least(x, -kMost), select(below, tail, above)), select(below, t.n, set1(0.0F)));
  }
  static V value(V x) { return value_from(x, normal_tail(min(set1(kMost), abs(x)))); }
  // Phi(x) + x phi(x): of x < 0 that is e^(-x^2 / 2) (share - |x| / sqrt(2 pi)), of others 1 minus that.
  static Slope with_slope(V x) {
    const V a = min(set1(kMost), abs(x));
    const NormalTail t = normal_tail(a);
    const V part = mul(t.p, fnma(a, set1(0.3989422804F), t.share));
    const V above = sub(set1(1.0F), times_power_of_two(part, t.n));
    return {value_from(x, t), select(less(x, set1(0.0F)), scaled(part, t.n), above)};
  }
};

struct Relu {
  static V value(V x) { return at_least(x, 0.0F); }
  static Slope with_slope(V x) { return {value(x), select(less(set1(0.0F), x), set1(1.0F), set1(0.0F))}; }
};

template <class Act, class T>
[[gnu::flatten]] void activate_with(const T* gate, const T* up, std::int64_t n, T* y) {
  if (up == nullptr)
    map_vectors<1, 1>({gate}, {y}, n, [](const V(&x)[1], V(&to)[1]) { to[0] = Act::value(x[0]); });
  else
    map_vectors<2, 1>({gate, up}, {y}, n, [](const V(&x)[2], V(&to)[1]) { to[0] = mul(Act::value(x[0]), x[1]); });
}

template <class Act, class T>
[[gnu::flatten]] void activate_backward_with(const T* dy, const T* gate, const T* up, std::int64_t n, T* dgate, T* dup,
                                             T* y) {
  if (up == nullptr)
    return map_vectors<2, 1>({dy, gate}, {dgate}, n,
                             [](const V(&x)[2], V(&to)[1]) { to[0] = mul(x[0], Act::with_slope(x[1]).slope); });
  const auto gradients = [](const V(&x)[3], auto& to) {
    const Slope of = Act::with_slope(x[1]);
    to[0] = mul(mul(x[0], x[2]), of.slope);
    to[1] = mul(x[0], of.value);
    return of.value;
  };
  if (y == nullptr)
    map_vectors<3, 2>({dy, gate, up}, {dgate, dup}, n, [&](const V(&x)[3], V(&to)[2]) { gradients(x, to); });
  else
    map_vectors<3, 3>({dy, gate, up}, {dgate, dup, y}, n,
                      [&](const V(&x)[3], V(&to)[3]) { to[2] = mul(gradients(x, to), x[2]); });
}

// Calls f with the activation and a null pointer to the elements, floats or BF16.
template <class F>
inline void with_activation(Activation kind, DType dtype, const F& f) {
  const auto of = [&](auto act) {
    if (dtype == DType::bf16) return f(act, static_cast<BF16*>(nullptr));
    f(act, static_cast<float*>(nullptr));
  };
  if (kind == Activation::silu) return of(Silu{});
  if (kind == Activation::gelu) return of(Gelu{});
  if (kind == Activation::gelu_tanh) return of(GeluTanh{});
  of(Relu{});
}

void activate(Activation kind, DType dtype, const void* gate, const void* up, std::int64_t n, void* y) {
  with_activation(kind, dtype, [&]<class Act, class T>(Act, T*) {
    activate_with<Act, T>(static_cast<const T*>(gate), static_cast<const T*>(up), n, static_cast<T*>(y));
  });
}

void activate_backward(Activation kind, DType dtype, const void* dy, const void* gate, const void* up, std::int64_t n,
                       void* dgate, void* dup, void* y) {
  with_activation(kind, dtype, [&]<class Act, class T>(Act, T*) {
    activate_backward_with<Act, T>(static_cast<const T*>(dy), static_cast<const T*>(gate), static_cast<const T*>(up), n,
                                   static_cast<T*>(dgate), static_cast<T*>(dup), static_cast<T*>(y));
  });
}
