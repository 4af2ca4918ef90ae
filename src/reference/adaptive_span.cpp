// Adaptive span by its formula: every pair of query and key is asked for its mask.
#include "reference/adaptive_span.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "base/elements.hpp"
#include "reference/attention.hpp"
#include "reference/rows.hpp"

namespace attend::reference {
namespace {

using std::int64_t;

std::size_t at(int64_t i) {
  return static_cast<std::size_t>(i);
}

int64_t position(const Diagonal& diagonal, int64_t b, int64_t i, int64_t M, int64_t N) {
  if (diagonal.offsets)
    return i + (diagonal.offsets->size() == 1 ? diagonal.offsets->front() : (*diagonal.offsets)[at(b)]);
  return diagonal.align == Align::last_key ? i + N - M : i;
}

struct Row {
  std::vector<double> weights, slopes;  // m exp(s) / sum, and d log m / dz; 0 where m is
  double lse;
};

Row make_row(const View& q, const View& k, double z, const AdaptiveSpanOptions& options, int64_t b, int64_t h,
             int64_t i) {
  const int64_t M = q.length(), N = k.length(), hk = h / (q.heads() / k.heads());
  const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(q.dim()))), R = options.ramp;
  constexpr double kHidden = -std::numeric_limits<double>::infinity();
  std::vector<double> scores(at(N), kHidden);
  Row row{std::vector<double>(at(N)), std::vector<double>(at(N)), kHidden};
  double top = kHidden, sum = 0;
  for (int64_t j = 0; j < N; ++j) {
    const double back = static_cast<double>(position(options.diagonal, b, i, M, N) - j);
    const double x = options.symmetric ? std::abs(back) : back;
    const double m = std::clamp((R + z - x) / R, 0.0, 1.0);
    if (x < 0 || m == 0 || !visible(options.mask, b, h, i, j, M, N)) continue;
    double s = 0;
    for (int64_t d = 0; d < q.dim(); ++d) s += load(q, b, h, i, d) * load(k, b, hk, j, d);
    scores[at(j)] = scale * s + std::log(m);
    if (x > z) row.slopes[at(j)] = 1 / (R + z - x);
    top = std::max(top, scores[at(j)]);
  }
  if (top == kHidden) return row;  // nothing to see
  for (int64_t j = 0; j < N; ++j) sum += row.weights[at(j)] = std::exp(scores[at(j)] - top);
  for (double& w : row.weights) w /= sum;
  row.lse = top + std::log(sum);
  return row;
}

double clamped(const View& span, int64_t h, const AdaptiveSpanOptions& options) {
  return std::clamp(load(span, 0, h, 0, 0), 0.0, options.max_span);
}

}  // namespace

void adaptive_span(const View& q, const View& k, const View& v, const View& span, const MutableView& out,
                   const AdaptiveSpanOptions& options, const std::optional<MutableView>& lse) {
  for_each_row(out.shape, [&](int64_t b, int64_t h, int64_t i) {
    const Row row = make_row(q, k, clamped(span, h, options), options, b, h, i);
    for (int64_t e = 0; e < v.dim(); ++e) {
      double sum = 0;
      for (int64_t j = 0; j < v.length(); ++j)
        if (row.weights[at(j)] != 0) sum += row.weights[at(j)] * load(v, b, h / (q.heads() / k.heads()), j, e);
      store(out, b, h, i, e, sum);
    }
    if (lse) store(*lse, b, h, i, 0, row.lse);
  });
}

// With w the weights: dw_j = dout . v_j, ds_j = w_j (dw_j - sum of w dw); dz = sum of ds d log m / dz.
void adaptive_span_backward(const View& dout, const View& q, const View& k, const View& v, const View& span,
                            const AdaptiveSpanGradients& gradients, const AdaptiveSpanOptions& options) {
  const int64_t H = q.heads(), N = k.length(), D = q.dim(), E = v.dim(), G = H / k.heads();
  const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(D)));
  Tensor dk(DType::f64, k.shape), dv(DType::f64, v.shape);
  std::vector<double> dz(at(H));
  for_each_row(q.shape, [&](int64_t b, int64_t h, int64_t i) {
    const Row row = make_row(q, k, clamped(span, h, options), options, b, h, i);
    std::vector<double> dw(at(N)), dq(at(D));
    double delta = 0;
    for (int64_t j = 0; j < N; ++j) {
      if (row.weights[at(j)] == 0) continue;
      for (int64_t e = 0; e < E; ++e) {
        dw[at(j)] += load(dout, b, h, i, e) * load(v, b, h / G, j, e);
        store(dv, b, h / G, j, e, load(dv, b, h / G, j, e) + row.weights[at(j)] * load(dout, b, h, i, e));
      }
      delta += row.weights[at(j)] * dw[at(j)];
    }
    for (int64_t j = 0; j < N; ++j) {
      if (row.weights[at(j)] == 0) continue;
      const double ds = row.weights[at(j)] * (dw[at(j)] - delta);
      dz[at(h)] += ds * row.slopes[at(j)];
      for (int64_t d = 0; d < D; ++d) {
        dq[at(d)] += scale * ds * load(k, b, h / G, j, d);
        store(dk, b, h / G, j, d, load(dk, b, h / G, j, d) + scale * ds * load(q, b, h, i, d));
      }
    }
    for (int64_t d = 0; d < D; ++d) store(gradients.dq, b, h, i, d, dq[at(d)]);
  });
  const auto copy = [](const View& from, const MutableView& to) {
    for_each_row(from.shape, [&](int64_t b, int64_t h, int64_t i) {
      for (int64_t d = 0; d < from.dim(); ++d) store(to, b, h, i, d, load(from, b, h, i, d));
    });
  };
  copy(dk, gradients.dk);
  copy(dv, gradients.dv);
  for (int64_t h = 0; h < H; ++h) {
    const double z = load(span, 0, h, 0, 0), g = dz[at(h)];
    const bool away = (z < 0 && g > 0) || (z > options.max_span && g < 0);  // a step downhill, against g, leads out
    store(gradients.dspan, 0, h, 0, 0, away ? 0 : g);
  }
}

}  // namespace attend::reference
