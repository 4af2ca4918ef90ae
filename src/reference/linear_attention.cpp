// Linear attention as its recurrence says it: scalar, in double, one token at a time.
#include "reference/linear_attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/elements.hpp"
#include "base/threads.hpp"

namespace attend::reference {
namespace {

using Row = std::vector<double>;
using State = std::vector<double>;  // [F, E], with z as one more column
using Kind = FeatureMap::Kind;

std::size_t at(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

Row load_row(const View& x, std::int64_t b, std::int64_t h, std::int64_t i) {
  Row row(at(x.dim()));
  for (std::int64_t d = 0; d < x.dim(); ++d) row[at(d)] = load(x, b, h, i, d);
  return row;
}

Row features(const FeatureMap& map, const Row& x, std::int64_t F) {
  Row y(at(F));
  if (map.kind == Kind::given) {
    map.value_f64(x, y);
    return y;
  }
  for (std::size_t d = 0; d < x.size(); ++d) {
    const double positive = map.kind == Kind::elu_plus_one ? x[d] + 1 : x[d];
    const double other = map.kind == Kind::elu_plus_one ? std::exp(x[d]) : map.kind == Kind::relu ? 0 : x[d];
    y[d] = x[d] > 0 ? positive : other;
  }
  return y;
}

Row feature_gradient(const FeatureMap& map, const Row& x, const Row& dy) {
  Row dx(x.size());
  if (map.kind == Kind::given) {
    map.gradient_f64(x, dy, dx);
    return dx;
  }
  for (std::size_t d = 0; d < x.size(); ++d) {
    const double other = map.kind == Kind::elu_plus_one ? std::exp(x[d]) : map.kind == Kind::relu ? 0 : 1;
    dx[d] = dy[d] * (x[d] > 0 ? 1 : other);
  }
  return dx;
}

double dot(const Row& x, const Row& y) {
  double sum = 0;
  for (std::size_t d = 0; d < x.size(); ++d) sum += x[d] * y[d];
  return sum;
}
void add(Row& to, const Row& x) {
  for (std::size_t d = 0; d < to.size(); ++d) to[d] += x[d];
}

// One state head: what it reads, and its recurrence.
class Head {
 public:
  Head(View q, View k, View v, const LinearAttentionOptions& options, std::int64_t heads, std::int64_t b,
       std::int64_t s)
      : q_(q), k_(k), v_(v), o_(options), b_(b), s_(s), states_(heads) {
    F = o_.map.kind == Kind::given && o_.map.features > 0 ? o_.map.features : q.dim();
    E = v.dim() + (o_.normalise ? 1 : 0);
    G = q.heads() / heads;
    kv = s * k.heads() / heads;
    N = k.length();
  }
  std::int64_t F, E, G, kv, N;

  bool hidden(std::int64_t t) const { return !o_.lengths.empty() && t >= o_.lengths[at(b_)]; }
  Row key_input(std::int64_t t) const { return load_row(k_, b_, kv, t); }
  Row key(std::int64_t t) const { return hidden(t) ? Row(at(F)) : features(o_.map, key_input(t), F); }
  Row value(std::int64_t t) const {
    if (hidden(t)) return Row(at(E));
    Row row = load_row(v_, b_, kv, t);
    if (o_.normalise) row.push_back(1);
    return row;
  }
  Row query_input(std::int64_t g, std::int64_t i) const { return load_row(q_, b_, s_ * G + g, i); }
  Row query(std::int64_t g, std::int64_t i) const { return features(o_.map, query_input(g, i), F); }
  double decay(std::int64_t t) const { return o_.log_decay && !hidden(t) ? std::exp(scalar(*o_.log_decay, t)) : 1; }
  double beta(std::int64_t t) const { return hidden(t) ? 0 : scalar(*o_.beta, t); }

  // Where the scalar of token t lies in a view whose dimensions of size 1 are repeated.
  double scalar(const View& x, std::int64_t t) const {
    return load(x, batch_of(x), head_of(x), x.length() == 1 ? 0 : t, 0);
  }
  void add_scalar(const MutableView& x, std::int64_t t, double value) const {
    const std::int64_t i = x.length() == 1 ? 0 : t;
    store(x, batch_of(x), head_of(x), i, 0, load(x, batch_of(x), head_of(x), i, 0) + value);
  }

  State load_state(const std::optional<View>& x) const {
    State state(at(F * E));
    if (!x) return state;
    for (std::int64_t n = 0; n < F * E; ++n) state[at(n)] = load(*x, b_, s_, n / E, n % E);
    return state;
  }
  void store_state(const std::optional<MutableView>& x, const State& state) const {
    if (!x) return;
    for (std::int64_t n = 0; n < F * E; ++n) store(*x, b_, s_, n / E, n % E, state[at(n)]);
  }

  // S = a S; S += k u^T with u = v, or beta (v - S^T k).
  void advance(State& S, std::int64_t t) const {
    stop_if_asked();
    const Row k = key(t);
    const double a = decay(t);
    for (double& x : S) x *= a;
    add_outer(S, k, written(S, k, t));
  }
  Row written(const State& decayed, const Row& k, std::int64_t t) const {
    Row u = value(t);
    if (!o_.beta) return u;
    const Row read = times(decayed, k);
    for (std::size_t e = 0; e < u.size(); ++e) u[e] = beta(t) * (u[e] - read[e]);
    return u;
  }

  Row times(const State& S, const Row& k) const {  // S^T k
    Row y(at(E));
    for (std::int64_t n = 0; n < F * E; ++n) y[at(n % E)] += S[at(n)] * k[at(n / E)];
    return y;
  }
  Row times_transposed(const State& S, const Row& u) const {  // S u
    Row y(at(F));
    for (std::int64_t n = 0; n < F * E; ++n) y[at(n / E)] += S[at(n)] * u[at(n % E)];
    return y;
  }
  void add_outer(State& S, const Row& k, const Row& u) const {
    for (std::int64_t n = 0; n < F * E; ++n) S[at(n)] += k[at(n / E)] * u[at(n % E)];
  }

  // Row i of every query head that reads this state.
  void write_out(const State& S, std::int64_t i, const MutableView& out) const {
    for (std::int64_t g = 0; g < G; ++g) {
      const Row o = times(S, query(g, i));
      const double den = o_.normalise ? o.back() + o_.eps : 1;
      for (std::int64_t e = 0; e < v_.dim(); ++e)
        store(out, b_, s_ * G + g, i, e, den == 0 ? 0 : o_.scale * o[at(e)] / den);
    }
  }
  // dS += what row i adds; dq is written.
  void read_back(const State& S, std::int64_t i, const View& dout, const MutableView& dq, State& dS) const {
    for (std::int64_t g = 0; g < G; ++g) {
      const Row x = query_input(g, i), q = features(o_.map, x, F), o = times(S, q);
      Row d = load_row(dout, b_, s_ * G + g, i);
      for (double& y : d) y *= o_.scale;
      if (o_.normalise) {
        const double den = o.back() + o_.eps, factor = den == 0 ? 0 : 1 / den;
        for (double& y : d) y *= factor;
        d.push_back(0);
        d.back() = -dot(d, o) * factor;
      }
      add_outer(dS, q, d);
      const Row dx = feature_gradient(o_.map, x, times_transposed(S, d));
      for (std::size_t j = 0; j < dx.size(); ++j) store(dq, b_, s_ * G + g, i, static_cast<std::int64_t>(j), dx[j]);
    }
  }

  // Token t backwards: dS goes from after it to before it, given the state S before it.
  void retreat(State S, State& dS, std::int64_t t, const LinearAttentionGradients& g) const {
    if (hidden(t)) return;
    const Row x = key_input(t), k = features(o_.map, x, F);
    const double a = decay(t);
    const State before = S;
    for (double& y : S) y *= a;
    const Row u = written(S, k, t);
    Row dk = times_transposed(dS, u), dv = times(dS, k);
    if (o_.beta) {
      Row gap = value(t);
      const Row read = times(S, k);
      for (std::size_t e = 0; e < gap.size(); ++e) gap[e] -= read[e];
      if (g.dbeta) add_scalar(*g.dbeta, t, dot(dv, gap));
      for (double& y : dv) y *= beta(t);
      Row minus = dv;
      for (double& y : minus) y = -y;
      add(dk, times_transposed(S, minus));
      add_outer(dS, k, minus);
    }
    if (g.dlog_decay) add_scalar(*g.dlog_decay, t, a * dot(dS, before));
    for (double& y : dS) y *= a;
    add_to(g.dk, t, feature_gradient(o_.map, x, dk));
    add_to(g.dv, t, dv);
  }
  // State heads that share a KV head add to the same rows.
  void add_to(const MutableView& x, std::int64_t t, const Row& row) const {
    for (std::int64_t d = 0; d < x.dim(); ++d) store(x, b_, kv, t, d, load(x, b_, kv, t, d) + row[at(d)]);
  }

 private:
  std::int64_t batch_of(const View& x) const { return x.batch() == 1 ? 0 : b_; }
  std::int64_t head_of(const View& x) const { return s_ * x.heads() / states_; }

  View q_, k_, v_;
  const LinearAttentionOptions& o_;
  std::int64_t b_, s_, states_;
};

template <class F>
void for_each_head(View q, View k, View v, const LinearAttentionOptions& options, const F& f) {
  const std::int64_t heads = linear_state_shape(q, k, v, options)[1];
  for (std::int64_t b = 0; b < q.batch(); ++b)
    for (std::int64_t s = 0; s < heads; ++s) f(Head(q, k, v, options, heads, b, s));
}

void clear(const MutableView& x) {
  for (std::int64_t b = 0; b < x.batch(); ++b)
    for (std::int64_t h = 0; h < x.heads(); ++h)
      for (std::int64_t i = 0; i < x.length(); ++i)
        for (std::int64_t d = 0; d < x.dim(); ++d) store(x, b, h, i, d, 0);
}

void causal_backward(const Head& head, const View& dout, const LinearAttentionGradients& gradients,
                     const LinearAttentionOptions& options, const std::optional<View>& dfinal_state) {
  constexpr std::int64_t kBlock = 64;
  std::vector<State> kept;
  State S = head.load_state(options.initial_state), dS = head.load_state(dfinal_state);
  for (std::int64_t t = 0; t < head.N; ++t) {
    if (t % kBlock == 0) kept.push_back(S);
    head.advance(S, t);
  }
  for (std::int64_t block = static_cast<std::int64_t>(kept.size()) - 1; block >= 0; --block) {
    const std::int64_t t0 = block * kBlock, t1 = std::min(head.N, t0 + kBlock);
    std::vector<State> states{kept[at(block)]};
    for (std::int64_t t = t0; t < t1; ++t) {
      states.push_back(states.back());
      head.advance(states.back(), t);
    }
    for (std::int64_t t = t1 - 1; t >= t0; --t) {
      head.read_back(states[at(t - t0 + 1)], t, dout, gradients.dq, dS);
      head.retreat(states[at(t - t0)], dS, t, gradients);
    }
  }
  head.store_state(gradients.dinitial_state, dS);
}

}  // namespace

void linear_attention(View q, View k, View v, MutableView out, const LinearAttentionOptions& options,
                      const std::optional<MutableView>& final_state) {
  for_each_head(q, k, v, options, [&](const Head& head) {
    State S = head.load_state(options.initial_state);
    for (std::int64_t t = 0; t < head.N; ++t) {
      head.advance(S, t);
      if (options.causal) head.write_out(S, t, out);
    }
    for (std::int64_t i = 0; !options.causal && i < q.length(); ++i) head.write_out(S, i, out);
    head.store_state(final_state, S);
  });
}

void linear_attention_backward(View dout, View q, View k, View v, const LinearAttentionGradients& gradients,
                               const LinearAttentionOptions& options, const std::optional<View>& dfinal_state) {
  clear(gradients.dk);
  clear(gradients.dv);
  if (gradients.dlog_decay) clear(*gradients.dlog_decay);
  if (gradients.dbeta) clear(*gradients.dbeta);
  for_each_head(q, k, v, options, [&](const Head& head) {
    if (options.causal) return causal_backward(head, dout, gradients, options, dfinal_state);
    State S = head.load_state({}), dS = head.load_state({});
    for (std::int64_t t = 0; t < head.N; ++t) head.advance(S, t);
    for (std::int64_t i = 0; i < q.length(); ++i) head.read_back(S, i, dout, gradients.dq, dS);
    for (std::int64_t t = 0; t < head.N; ++t) head.retreat(S, dS, t, gradients);  // of S it uses the decay alone: 1
  });
}

}  // namespace attend::reference
