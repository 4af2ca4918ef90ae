// Additive attention as its formula says it: scalar, in double, one row at a time.
#include "reference/additive_attention.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "base/elements.hpp"
#include "reference/attention.hpp"
#include "reference/rows.hpp"

namespace attend::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Sizes {
  Sizes(const View& a, const View& b, const View& v)
      : H(a.heads()), M(a.length()), N(b.length()), D(a.dim()), E(v.dim()), group(H / b.heads()) {}
  std::int64_t H, M, N, D, E, group;
};

// One query's softmax; a key it does not see has weight 0 and counts for nothing.
struct Weights {
  std::vector<std::int64_t> keys;  // those it sees
  std::vector<double> values;      // the weight of each
  double lse = -kInfinity;
};

Weights weights_of(const View& a, const View& b, const View& w, const AdditiveAttentionOptions& options, const Sizes& n,
                   std::int64_t batch, std::int64_t h, std::int64_t i) {
  Weights row;
  double largest = -kInfinity;
  for (std::int64_t j = 0; j < n.N; ++j) {
    if (!visible(options.mask, batch, h, i, j, n.M, n.N)) continue;
    double sum = 0;
    for (std::int64_t d = 0; d < n.D; ++d) {
      sum += load(w, 0, h, 0, d) * std::tanh(load(a, batch, h, i, d) + load(b, batch, h / n.group, j, d));
    }
    row.keys.push_back(j);
    row.values.push_back(options.scale * sum);
    largest = std::fmax(largest, row.values.back());
  }
  if (largest == -kInfinity) largest = 0;  // nothing to see
  double sum = 0;
  for (double& value : row.values) sum += value = std::exp(value - largest);
  for (double& value : row.values) value /= sum;
  row.lse = largest + std::log(sum);
  return row;
}

void fill_zero(const MutableView& x) {
  for_each_row(x.shape, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    for (std::int64_t d = 0; d < x.dim(); ++d) store(x, b, h, i, d, 0);
  });
}

void add(Tensor& x, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d, double value) {
  x.data<double>()[offset_of(x.view().strides, b, h, i, d)] += value;
}

void copy(const Tensor& from, const MutableView& to) {
  for_each_row(to.shape, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    for (std::int64_t d = 0; d < to.dim(); ++d) store(to, b, h, i, d, load(from, b, h, i, d));
  });
}

}  // namespace

void additive_attention(const View& a, const View& b, const View& w, const View& v, const MutableView& out,
                        const AdditiveAttentionOptions& options, const std::optional<MutableView>& lse) {
  const Sizes n(a, b, v);
  for_each_row(out.shape, [&](std::int64_t batch, std::int64_t h, std::int64_t i) {
    const Weights row = weights_of(a, b, w, options, n, batch, h, i);
    for (std::int64_t e = 0; e < n.E; ++e) {
      double sum = 0;
      for (std::size_t t = 0; t < row.keys.size(); ++t) {
        sum += row.values[t] * load(v, batch, h / n.group, row.keys[t], e);
      }
      store(out, batch, h, i, e, sum);
    }
    if (lse) store(*lse, batch, h, i, 0, row.lse);
  });
}

// With p the weights: dp = dout . v, ds = p (dp - sum of p dp); s depends on a, b and w through t = tanh(a + b).
void additive_attention_backward(const View& dout, const View& a, const View& b, const View& w, const View& v,
                                 const AdditiveAttentionGradients& gradients, const AdditiveAttentionOptions& options) {
  const Sizes n(a, b, v);
  fill_zero(gradients.da);
  Tensor db(DType::f64, b.shape), dw(DType::f64, w.shape), dv(DType::f64, v.shape);
  for_each_row(dout.shape, [&](std::int64_t batch, std::int64_t h, std::int64_t i) {
    const std::int64_t hk = h / n.group;
    const Weights row = weights_of(a, b, w, options, n, batch, h, i);
    std::vector<double> dp(row.keys.size()), da(static_cast<std::size_t>(n.D));
    double delta = 0;
    for (std::size_t t = 0; t < row.keys.size(); ++t) {
      for (std::int64_t e = 0; e < n.E; ++e) {
        const double dy = load(dout, batch, h, i, e);
        dp[t] += dy * load(v, batch, hk, row.keys[t], e);
        add(dv, batch, hk, row.keys[t], e, row.values[t] * dy);
      }
      delta += row.values[t] * dp[t];
    }
    for (std::size_t t = 0; t < row.keys.size(); ++t) {
      const double ds = options.scale * row.values[t] * (dp[t] - delta);
      for (std::int64_t d = 0; d < n.D; ++d) {
        const double x = load(a, batch, h, i, d) + load(b, batch, hk, row.keys[t], d);
        const double tanh = std::tanh(x), cosh = std::cosh(x);
        const double inside = ds * load(w, 0, h, 0, d) / cosh / cosh;  // 1 - tanh^2 without what that loses
        da[static_cast<std::size_t>(d)] += inside;
        add(db, batch, hk, row.keys[t], d, inside);
        add(dw, 0, h, 0, d, ds * tanh);
      }
    }
    for (std::int64_t d = 0; d < n.D; ++d) store(gradients.da, batch, h, i, d, da[static_cast<std::size_t>(d)]);
  });
  copy(db, gradients.db);
  copy(dw, gradients.dw);
  copy(dv, gradients.dv);
}

}  // namespace attend::reference
