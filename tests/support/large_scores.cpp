// The truth of large scores, with the error of every step carried along.
#include "support/large_scores.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <utility>

#include "base/random.hpp"
#include "reference/attention.hpp"
#include "support/buffer.hpp"
#include "support/compare.hpp"

namespace attend::test {
namespace {

using std::int64_t;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kOrdinaryLse = 1024;  // beyond it the truth is that of scores as they are held

std::size_t at(int64_t n) {
  return static_cast<std::size_t>(n);
}

double largest_of(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return 65504;
    case DType::bf16:
    case DType::f32:
      return static_cast<double>(std::numeric_limits<float>::max());
    case DType::f64:
      return std::numeric_limits<double>::max();
  }
  return 0;
}

DType wide(DType dtype) {
  return dtype == DType::f64 ? DType::f64 : DType::f32;
}

// A sum with the bounds of its terms: their own errors, and `rounding` for each term's share of the roundings.
struct Sum {
  double value = 0, error = 0, size = 0;
  void add(double a, double a_error, double b) {
    value += a * b;
    error += a_error * std::abs(b);
    size += std::abs(a * b);
  }
};

// Real: what the truth is computed in. Held: what the engine holds scores in.
template <class Real, class Held>
class HeldTruth {
 public:
  explicit HeldTruth(const LargeScores& p)
      : p_(p),
        u_(unit_roundoff(p.dtype)),
        narrow_(p.dtype == DType::bf16 ? 0x1p-8 : 0),
        tiny_(p.dtype == DType::f64 ? 0x1p-1000 : 0x1p-120),
        w_(at(p.N)),
        w_error_(at(p.N)),
        keep_(at(p.N)) {
    const int64_t rows = p.B * p.H * p.M, keys = p.B * p.Hk * p.N;
    for (LargeResults* r : {&t_.values, &t_.bounds}) {
      r->out.resize(at(rows * p.E));
      r->lse.resize(at(rows));
      r->weights.resize(at(rows * p.N));
      r->dq.resize(at(rows * p.D));
      r->dk.resize(at(keys * p.D));
      r->dv.resize(at(keys * p.E));
      r->dbias.resize(p.bias.size());
      r->dsinks.resize(p.sinks.size());
    }
    dk_.resize(at(keys * p.D));
    dv_.resize(at(keys * p.E));
    dsinks_.resize(p.sinks.size());
  }

  LargeTruth run() {
    for (int64_t b = 0; b < p_.B; ++b)
      for (int64_t h = 0; h < p_.H; ++h)
        for (int64_t i = 0; i < p_.M; ++i) row(b, h, i);
    for (std::size_t n = 0; n < dk_.size(); ++n) finish(dk_[n], p_.dtype, t_.values.dk[n], t_.bounds.dk[n]);
    for (std::size_t n = 0; n < dv_.size(); ++n) finish(dv_[n], p_.dtype, t_.values.dv[n], t_.bounds.dv[n]);
    for (std::size_t n = 0; n < dsinks_.size(); ++n)
      finish(dsinks_[n], wide(p_.dtype), t_.values.dsinks[n], t_.bounds.dsinks[n]);
    return std::move(t_);
  }

 private:
  // 32 u for the roundings of a sum, and where weights are rounded to bf16 that.
  void finish(const Sum& sum, DType dtype, double& value, double& bound) const {
    value = sum.value;
    bound = sum.error + (32 * u_ + narrow_) * sum.size;
    bound += half_ulp(dtype, std::min(largest_of(dtype), std::abs(value) + bound)) + tiny_;
  }

  struct Score {
    Real value;    // the score
    Real held;     // the same, rounded where the engine rounds it
    double error;  // of `held`: what the soft-cap's own roundings may do
    double slope;  // of the soft-cap
  };

  Score score(int64_t b, int64_t h, int64_t i, int64_t j) const {
    Real x = 0;
    const double* q = p_.q.data() + ((b * p_.H + h) * p_.M + i) * p_.D;
    const double* k = p_.k.data() + ((b * p_.Hk + h / (p_.H / p_.Hk)) * p_.N + j) * p_.D;
    for (int64_t d = 0; d < p_.D; ++d) x += static_cast<Real>(q[d]) * static_cast<Real>(k[d]);
    x *= static_cast<Real>(p_.scale);
    Score s{x, x, 0, 1};
    if (p_.softcap == 0 && p_.bias.empty() && p_.slopes.empty()) return s;  // the scale is a factor of the exponent
    const auto round = [](Real y) { return static_cast<Real>(static_cast<Held>(y)); };
    if (p_.softcap != 0) {
      const auto cap = static_cast<Real>(p_.softcap);
      const Real cosh = std::cosh(x / cap);
      s.value = cap * std::tanh(x / cap);
      s.slope = static_cast<double>(1 / cosh / cosh);
      s.error = 8 * u_ * static_cast<double>(p_.softcap);
    }
    s.held = round(s.value);
    const auto step = [&](double slope, double term) {  // in the engine's own arithmetic, one rounding each
      const auto added = [&](Real to) {
        return static_cast<Real>(std::fma(static_cast<Held>(slope), static_cast<Held>(term), static_cast<Held>(to)));
      };
      const auto error = static_cast<Real>(s.error);
      const Real low = added(s.held - error), high = added(s.held + error);
      s.held = added(s.held);
      s.error = std::isinf(s.held) ? 0 : static_cast<double>(std::max(high - s.held, s.held - low));
      s.value += static_cast<Real>(slope) * static_cast<Real>(term);
    };
    if (!p_.bias.empty()) step(1, p_.bias[at(((b * p_.H + h) * p_.M + i) * p_.N + j)]);
    if (!p_.slopes.empty()) step(-p_.slopes[at(h)], distance(i, j));
    return s;
  }
  double distance(int64_t i, int64_t j) const { return static_cast<double>(std::abs(i + p_.N - p_.M - j)); }

  // Weights and their errors, the sink's weight with its error, and the LSE.
  void weigh(int64_t b, int64_t h, int64_t i, const std::vector<Score>& scores, const std::vector<char>& visible) {
    const int64_t row = (b * p_.H + h) * p_.M + i;
    for (const bool held : {false, true}) {
      const auto value = [&](int64_t j) { return held ? scores[at(j)].held : scores[at(j)].value; };
      const Real sink = p_.sinks.empty() ? -static_cast<Real>(kInfinity) : static_cast<Real>(p_.sinks[at(h)]);
      Real top = sink;
      for (int64_t j = 0; j < p_.N; ++j)
        if (visible[at(j)] && value(j) > top) top = value(j);
      const bool nothing = top == -static_cast<Real>(kInfinity);
      Real sum = nothing ? 0 : std::exp(sink - top);
      for (int64_t j = 0; j < p_.N; ++j)
        if (visible[at(j)] && !nothing) sum += std::exp(value(j) - top);
      const Real lse = nothing ? top : top + std::log(sum);
      // An ordinary row has the ordinary truth, and its errors are those of scores of its size.
      const bool ordinary = std::abs(static_cast<double>(lse)) <= kOrdinaryLse;
      if (!held && !ordinary && !nothing) continue;
      const auto error_of = [&](Real s, double own) {
        const double t = static_cast<double>(top - s) + static_cast<double>(std::log(sum));
        const double size = std::abs(static_cast<double>(s)) + std::abs(static_cast<double>(lse));
        return u_ * (16 + 4 * (ordinary && !held ? size : t)) + own;
      };
      double common = 0;  // what errors of the scores do to the sum
      for (int64_t j = 0; j < p_.N; ++j) {
        w_[at(j)] = visible[at(j)] && !nothing ? static_cast<double>(std::exp(value(j) - top) / sum) : 0;
        if (w_[at(j)] != 0) common += w_[at(j)] * error_of(value(j), scores[at(j)].error);
      }
      for (int64_t j = 0; j < p_.N; ++j)
        w_error_[at(j)] =
            w_[at(j)] == 0 ? 0 : w_[at(j)] * std::expm1(error_of(value(j), scores[at(j)].error) + common) + tiny_;
      sink_ = nothing || p_.sinks.empty() ? 0 : static_cast<double>(std::exp(sink - top) / sum);
      sink_error_ = sink_ == 0 ? 0 : sink_ * std::expm1(error_of(sink, 0) + common);
      t_.values.lse[at(row)] = static_cast<double>(lse);
      const double size = std::abs(static_cast<double>(lse));
      const double own = (p_.dtype == DType::f64 ? 2 : 1) * half_ulp(wide(p_.dtype), size);  // here it is rounded too
      t_.bounds.lse[at(row)] = nothing ? 0 : common + u_ * (16 + 4 * std::min(size, kOrdinaryLse)) + own;
      return;
    }
  }

  void row(int64_t b, int64_t h, int64_t i) {
    const int64_t row = (b * p_.H + h) * p_.M + i, head = b * p_.Hk + h / (p_.H / p_.Hk);
    std::vector<Score> scores(at(p_.N));
    std::vector<char> visible(at(p_.N));
    for (int64_t j = 0; j < p_.N; ++j) {
      visible[at(j)] = reference::visible(p_.mask, b, h, i, j, p_.M, p_.N);
      if (visible[at(j)]) scores[at(j)] = score(b, h, i, j);
      keep_[at(j)] = 1;
      if (p_.dropout.probability != 0) {
        const bool kept = dropout_bits(p_.dropout.seed, b, h, i, j) >= dropout_threshold(p_.dropout.probability);
        keep_[at(j)] = kept ? 1 / (1 - p_.dropout.probability) : 0;
      }
    }
    weigh(b, h, i, scores, visible);
    for (int64_t j = 0; j < p_.N; ++j) {
      t_.values.weights[at(row * p_.N + j)] = w_[at(j)];
      t_.bounds.weights[at(row * p_.N + j)] = w_error_[at(j)] + half_ulp(wide(p_.dtype), w_[at(j)]) + tiny_;
    }
    const double* dout = p_.dout.data() + row * p_.E;
    double delta = 0, delta_error = 0;
    for (int64_t e = 0; e < p_.E; ++e) {
      Sum out;
      for (int64_t j = 0; j < p_.N; ++j) {
        out.add(w_[at(j)] * keep_[at(j)], w_error_[at(j)] * keep_[at(j)], p_.v[at((head * p_.N + j) * p_.E + e)]);
        dv_[at((head * p_.N + j) * p_.E + e)].add(w_[at(j)] * keep_[at(j)], w_error_[at(j)] * keep_[at(j)], dout[e]);
      }
      const std::size_t n = at(row * p_.E + e);
      finish(out, p_.dtype, t_.values.out[n], t_.bounds.out[n]);
      delta += dout[e] * out.value;
      delta_error += std::abs(dout[e]) * (t_.bounds.out[n] + 16 * u_ * std::abs(out.value));
    }
    if (!p_.sinks.empty()) dsinks_[at(h)].add(sink_, sink_error_, -delta);
    if (!p_.sinks.empty()) dsinks_[at(h)].error += (sink_ + sink_error_) * delta_error;
    gradients(row, head, scores, delta, delta_error);
  }

  void gradients(int64_t row, int64_t head, const std::vector<Score>& scores, double delta, double delta_error) {
    const double* dout = p_.dout.data() + row * p_.E;
    std::vector<Sum> dq(at(p_.D));
    const auto scale = static_cast<double>(p_.scale);
    for (int64_t j = 0; j < p_.N; ++j) {
      if (w_[at(j)] == 0) continue;
      Sum dw;
      for (int64_t e = 0; e < p_.E; ++e) dw.add(dout[e], 0, p_.v[at((head * p_.N + j) * p_.E + e)] * keep_[at(j)]);
      const double difference = dw.value - delta, ds = w_[at(j)] * difference;
      const double error = w_error_[at(j)] * std::abs(difference) + 4 * u_ * std::abs(ds) +
                           (w_[at(j)] + w_error_[at(j)]) * (16 * u_ * dw.size + delta_error);
      if (!p_.bias.empty()) {
        const std::size_t n = at(row * p_.N + j);
        t_.values.dbias[n] = ds;
        t_.bounds.dbias[n] = error + half_ulp(wide(p_.dtype), std::abs(ds) + error) + tiny_;
      }
      const double slope = scores[at(j)].slope, steep = p_.softcap != 0 ? 32 * u_ : 0;
      const double dqk = scale * ds * slope, dqk_error = scale * (error * slope + (std::abs(ds) + error) * steep);
      for (int64_t d = 0; d < p_.D; ++d) {
        dq[at(d)].add(dqk, dqk_error, p_.k[at((head * p_.N + j) * p_.D + d)]);
        dk_[at((head * p_.N + j) * p_.D + d)].add(dqk, dqk_error, p_.q[at(row * p_.D + d)]);
      }
    }
    for (int64_t d = 0; d < p_.D; ++d) {
      const std::size_t n = at(row * p_.D + d);
      finish(dq[at(d)], p_.dtype, t_.values.dq[n], t_.bounds.dq[n]);
    }
  }

  const LargeScores& p_;
  double u_, narrow_, tiny_;  // tiny: what is smaller may vanish
  LargeTruth t_;
  std::vector<double> w_, w_error_, keep_;  // of the row in hand
  double sink_ = 0, sink_error_ = 0;
  std::vector<Sum> dk_, dv_, dsinks_;
};

Buffer filled(DType dtype, const Shape& shape, const std::vector<double>& values) {
  Buffer buffer(dtype, shape, Layout::bhld);
  buffer.fill(values);
  return buffer;
}

}  // namespace

void LargeScores::draw(std::uint64_t seed) {
  const auto fill = [&](std::vector<double>& x, int64_t count, std::uint64_t key) {
    x.resize(at(count));
    for (std::size_t n = 0; n < x.size(); ++n) x[n] = std::floor(uniform(key, n) * 33 - 16) / 8;
  };
  fill(q, B * H * M * D, seed * 5 + 1);
  fill(k, B * Hk * N * D, seed * 5 + 2);
  fill(v, B * Hk * N * E, seed * 5 + 3);
  fill(dout, B * H * M * E, seed * 5 + 4);
}

LargeTruth large_truth(const LargeScores& p) {
  return p.dtype == DType::f64 ? HeldTruth<long double, double>(p).run() : HeldTruth<double, float>(p).run();
}

LargeResults large_compute(const LargeScores& p, bool with_weights) {
  const Shape q_shape{p.B, p.H, p.M, p.D}, k_shape{p.B, p.Hk, p.N, p.D}, v_shape{p.B, p.Hk, p.N, p.E};
  const Shape out_shape{p.B, p.H, p.M, p.E}, row_shape{p.B, p.H, p.M, 1}, bias_shape{p.B, p.H, p.M, p.N};
  const Shape head_shape{1, p.H, 1, 1};
  const Buffer q = filled(p.dtype, q_shape, p.q), k = filled(p.dtype, k_shape, p.k), v = filled(p.dtype, v_shape, p.v);
  const Buffer dout = filled(p.dtype, out_shape, p.dout);
  AttentionOptions options;
  options.scale = static_cast<double>(p.scale);
  options.softcap = static_cast<double>(p.softcap);
  options.mask = p.mask;
  options.dropout = p.dropout;
  std::optional<Buffer> bias, sinks, slopes, dbias, dsinks;
  Buffer out(p.dtype, out_shape, Layout::bhld), lse(wide(p.dtype), row_shape, Layout::bhld);
  Buffer weights(wide(p.dtype), bias_shape, Layout::bhld);
  Buffer dq(p.dtype, q_shape, Layout::bhld), dk(p.dtype, k_shape, Layout::bhld), dv(p.dtype, v_shape, Layout::bhld);
  AttentionGradients gradients{dq.view(), dk.view(), dv.view(), {}, {}};
  if (!p.bias.empty()) {
    options.bias = std::as_const(bias.emplace(filled(p.bias_dtype, bias_shape, p.bias))).view();
    gradients.dbias = dbias.emplace(wide(p.dtype), bias_shape, Layout::bhld).view();
  }
  if (!p.sinks.empty()) {
    options.sinks = std::as_const(sinks.emplace(filled(wide(p.dtype), head_shape, p.sinks))).view();
    gradients.dsinks = dsinks.emplace(wide(p.dtype), head_shape, Layout::bhld).view();
  }
  if (!p.slopes.empty())
    options.alibi_slopes = std::as_const(slopes.emplace(filled(DType::f32, head_shape, p.slopes))).view();
  AttentionExtras extras;
  extras.lse = lse.view();
  if (with_weights) extras.weights = weights.view();
  attention(q.view(), k.view(), v.view(), out.view(), options, extras);
  attention_backward(dout.view(), q.view(), k.view(), v.view(), out.view(), lse.view(), gradients, options);
  return {out.read(),
          lse.read(),
          with_weights ? weights.read() : std::vector<double>(),
          dq.read(),
          dk.read(),
          dv.read(),
          dbias ? dbias->read() : std::vector<double>(),
          dsinks ? dsinks->read() : std::vector<double>()};
}

std::vector<std::string> compare_large(const LargeScores& p, const LargeTruth& truth, const LargeResults& got) {
  std::vector<std::string> failures;
  const auto compare = [&](const char* what, std::vector<double> LargeResults::* of, DType dtype) {
    const auto &x = got.*of, &wanted = truth.values.*of, &bounds = truth.bounds.*of;
    if (x.size() != wanted.size()) return failures.push_back(p.name + ": " + what + " has a wrong size");
    std::size_t beyond = 0, worst = 0;
    double ratio = 0;
    for (std::size_t n = 0; n < x.size(); ++n) {
      if (x[n] == wanted[n]) continue;  // -inf among them
      const double error = std::abs(x[n] - wanted[n]);
      // Where the bound reaches beyond the largest number of the dtype, so may the result.
      const bool overflow = std::isinf(x[n]) && std::abs(wanted[n]) + bounds[n] >= largest_of(dtype);
      if (error <= bounds[n] || overflow) continue;
      const double times = std::isnan(error) ? kInfinity : error / bounds[n];
      if (beyond++ == 0 || times > ratio) worst = n, ratio = times;
    }
    if (beyond == 0) return;
    char text[160];
    std::snprintf(text, sizeof text, ": %s[%zu] is %.9g, expected %.9g within %.3g (%zu of %zu)", what, worst, x[worst],
                  wanted[worst], bounds[worst], beyond, x.size());
    failures.push_back(p.name + text);
  };
  compare("out", &LargeResults::out, p.dtype);
  compare("lse", &LargeResults::lse, wide(p.dtype));
  if (!got.weights.empty()) compare("weights", &LargeResults::weights, wide(p.dtype));
  compare("dq", &LargeResults::dq, p.dtype);
  compare("dk", &LargeResults::dk, p.dtype);
  compare("dv", &LargeResults::dv, p.dtype);
  compare("dbias", &LargeResults::dbias, wide(p.dtype));
  compare("dsinks", &LargeResults::dsinks, wide(p.dtype));
  return failures;
}

}  // namespace attend::test
