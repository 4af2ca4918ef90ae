// The softmax of a row over some of its keys, and how two of them become one.
#pragma once

namespace attend {

// sum = sum over the keys of exp(score - max). As it is made it has seen no key, and is the identity of merge.
// always_inline: an out-of-line copy in an object built for an instruction set could serve the others too.
template <class Score, class Sum>
struct SoftmaxState {
  Score max = -__builtin_inff();
  Sum sum = 0;

  [[gnu::always_inline]] bool empty() const { return sum == 0; }
};

// Two states as one, and what the weights of either, made against its own maximum, are multiplied by.
template <class Score, class Sum>
struct MergedStates {
  SoftmaxState<Score, Sum> whole;
  Sum a, b;
};

// The one place where two running states are joined: of splits, with a sink, of parts by their LSE, of row states.
// exp(x) is that of the scores: they may count in nats or in units of their own. A merge with the empty state changes
// no bit of the other.
template <class Score, class Sum, class Exp>
[[gnu::always_inline]] inline MergedStates<Score, Sum> merge(const SoftmaxState<Score, Sum>& a,
                                                             const SoftmaxState<Score, Sum>& b, const Exp& exp) {
  if (b.empty()) return {a, 1, 0};
  if (a.empty()) return {b, 0, 1};
  const Score top = a.max > b.max ? a.max : b.max;
  const Sum of_a = exp(a.max - top), of_b = exp(b.max - top);
  return {{top, a.sum * of_a + b.sum * of_b}, of_a, of_b};
}

// What an LSE says of its row.
template <class T>
[[gnu::always_inline]] inline SoftmaxState<T, T> state_of_lse(T lse) {
  return lse == -__builtin_inff() ? SoftmaxState<T, T>{} : SoftmaxState<T, T>{lse, 1};
}

// An LSE in f32 moves every weight of its row by up to |LSE| * 2^-24 of itself: up to here by 2^-14. Beyond, the row's
// maximum and sum are made again. A NaN suffices, it stays one, and so does -inf: such a row saw nothing.
inline constexpr float kLargestLse = 1024.0F;
[[gnu::always_inline]] inline bool lse_suffices(float lse) {
  return !(lse > kLargestLse || (lse < -kLargestLse && lse != -__builtin_inff()));
}

// The softmax of a row over some keys, without a sink: what its LSE is too narrow to tell.
struct RowState {
  float held = -__builtin_inff();      // the maximum as the kernels hold scores: q.k where scale is in the exponent
  SoftmaxState<double, double> exact;  // its maximum is the same as a score, exactly
};

// Over the keys of both. The maxima are exact, and so is their difference, however large they are.
[[gnu::always_inline]] inline RowState merge(const RowState& a, const RowState& b) {
  const auto merged = merge(a.exact, b.exact, [](double x) { return __builtin_exp(x); });
  return {a.exact.max >= b.exact.max ? a.held : b.held, merged.whole};
}
// The share of a part's keys in the weights of a row.
[[gnu::always_inline]] inline double share_of(const RowState& part, const RowState& whole) {
  return part.exact.empty() ? 0 : part.exact.sum / whole.exact.sum * __builtin_exp(part.exact.max - whole.exact.max);
}

}  // namespace attend
