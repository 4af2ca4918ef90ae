// Reformer's attention by its definition: who meets whom is counted pair by pair.
#include "reference/reformer.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>

#include "base/elements.hpp"
#include "base/threads.hpp"
#include "reference/rows.hpp"

namespace attend::reference {
namespace {

using std::int64_t;

std::size_t at(int64_t i) {
  return static_cast<std::size_t>(i);
}

// The rows of one head, and the same of length 1.
struct Head {
  Head(const View& x, int64_t b, int64_t h) : L(x.length()), D(x.dim()), q(at(L * D)), k(at(L * D)), norm(at(L)) {
    for (int64_t i = 0; i < L; ++i) {
      for (int64_t d = 0; d < D; ++d) {
        q[at(i * D + d)] = load(x, b, h, i, d);
        norm[at(i)] += q[at(i * D + d)] * q[at(i * D + d)];
      }
      norm[at(i)] = std::sqrt(norm[at(i)]);
      for (int64_t d = 0; norm[at(i)] > 0 && d < D; ++d) k[at(i * D + d)] = q[at(i * D + d)] / norm[at(i)];
    }
  }
  int64_t L, D;
  std::vector<double> q, k, norm;
};

// n_ij exp(s_ij) / sum, over j.
std::vector<double> weights_of(const Head& head, const std::vector<std::int32_t>& meetings, int64_t i, double scale,
                               double& lse) {
  stop_if_asked();
  std::vector<double> scores(at(head.L)), weights(at(head.L));
  double top = -HUGE_VAL, sum = 0;
  for (int64_t j = 0; j < head.L; ++j) {
    for (int64_t d = 0; d < head.D; ++d)
      scores[at(j)] += scale * head.q[at(i * head.D + d)] * head.k[at(j * head.D + d)];
    if (meetings[at(i * head.L + j)] != 0) top = std::max(top, scores[at(j)]);
  }
  for (int64_t j = 0; j < head.L; ++j) {
    const int n = meetings[at(i * head.L + j)];
    if (n != 0) weights[at(j)] = n * std::exp(scores[at(j)] - top);
    sum += weights[at(j)];
  }
  for (double& w : weights) w /= sum;
  lse = top + std::log(sum);
  return weights;
}

double scale_of(const View& q, const ReformerOptions& options) {
  return options.scale.value_or(1 / std::sqrt(static_cast<double>(q.dim())));
}

}  // namespace

std::vector<std::int32_t> reformer_hashes(const View& q, const View& rotations, const std::vector<int64_t>& factors) {
  const int64_t B = q.batch(), H = q.heads(), L = q.length();
  std::vector<std::int32_t> hashes(at(rotations.batch() * B * H * L));
  for (int64_t r = 0; r < rotations.batch(); ++r)
    for_each_row(q.shape, [&](int64_t b, int64_t h, int64_t i) {
      int64_t hash = 0, unit = 1, first = 0;
      for (const int64_t factor : factors) {
        const int64_t half = factor / 2;
        double largest = -HUGE_VAL;
        int64_t bucket = 0;
        for (int64_t c = 0; c < factor; ++c) {
          double y = 0;
          for (int64_t d = 0; d < q.dim(); ++d) y += load(q, b, h, i, d) * load(rotations, r, h, first + c % half, d);
          if (c >= half) y = -y;
          if (y > largest) largest = y, bucket = c;
        }
        hash += unit * bucket;
        unit *= factor;
        first += half;
      }
      hashes[at(((r * B + b) * H + h) * L + i)] = static_cast<std::int32_t>(hash);
    });
  return hashes;
}

std::vector<std::int32_t> reformer_meetings(const std::vector<std::int32_t>& hashes, int64_t b, int64_t h,
                                            const Shape& q, const ReformerOptions& options) {
  const int64_t B = q[0], H = q[1], L = q[2];
  std::vector<std::int32_t> meetings(at(L * L));
  std::vector<int64_t> order(at(L)), rank(at(L));
  for (int64_t r = 0; r < options.rounds; ++r) {
    const std::int32_t* bucket = hashes.data() + ((r * B + b) * H + h) * L;
    std::iota(order.begin(), order.end(), int64_t{0});
    std::sort(order.begin(), order.end(),
              [&](int64_t x, int64_t y) { return std::pair(bucket[x], x) < std::pair(bucket[y], y); });
    for (int64_t t = 0; t < L; ++t) rank[at(order[at(t)])] = t;
    for (int64_t i = 0; i < L; ++i)
      for (int64_t j = 0; j < L; ++j) {
        const int64_t back = rank[at(i)] / options.chunk - rank[at(j)] / options.chunk;  // chunks
        const bool seen = options.causal ? j < i : j != i;
        meetings[at(i * L + j)] += bucket[i] == bucket[j] && (back == 0 || back == 1) && seen;
      }
  }
  for (int64_t i = 0; i < L; ++i) {
    const auto row = meetings.begin() + i * L;
    if (std::all_of(row, row + L, [](std::int32_t n) { return n == 0; })) row[i] = 1;  // nobody else
  }
  return meetings;
}

void reformer(const View& q, const View& v, const std::vector<std::int32_t>& hashes, const MutableView& out,
              const ReformerOptions& options, const std::optional<MutableView>& lse) {
  for_each_row({q.batch(), q.heads(), 1, q.length()}, [&](int64_t b, int64_t h, int64_t) {
    const Head head(q, b, h);
    const int64_t hv = h / (q.heads() / v.heads());
    const auto meetings = reformer_meetings(hashes, b, h, q.shape, options);
    for (int64_t i = 0; i < head.L; ++i) {
      double log_sum = 0;
      const std::vector<double> weights = weights_of(head, meetings, i, scale_of(q, options), log_sum);
      for (int64_t e = 0; e < v.dim(); ++e) {
        double sum = 0;
        for (int64_t j = 0; j < head.L; ++j)
          if (weights[at(j)] != 0) sum += weights[at(j)] * load(v, b, hv, j, e);
        store(out, b, h, i, e, sum);
      }
      if (lse) store(*lse, b, h, i, 0, log_sum);
    }
  });
}

// dw_j = dout . v_j, ds_j = w_j (dw_j - sum of w dw); dq gains scale ds_j k_j, dk_j gains scale ds_j q, and through
// k = q / |q|: dq_j gains (dk_j - k_j (k_j . dk_j)) / |q_j|.
void reformer_backward(const View& dout, const View& q, const View& v, const std::vector<std::int32_t>& hashes,
                       const ReformerGradients& gradients, const ReformerOptions& options) {
  const int64_t L = q.length(), D = q.dim(), E = v.dim();
  const double scale = scale_of(q, options);
  Tensor dv(DType::f64, v.shape);
  for_each_row({q.batch(), q.heads(), 1, L}, [&](int64_t b, int64_t h, int64_t) {
    const Head head(q, b, h);
    const int64_t hv = h / (q.heads() / v.heads());
    const auto meetings = reformer_meetings(hashes, b, h, q.shape, options);
    std::vector<double> dq(at(L * D)), dk(at(L * D)), dw(at(L));
    for (int64_t i = 0; i < L; ++i) {
      double lse = 0, delta = 0;
      const std::vector<double> weights = weights_of(head, meetings, i, scale, lse);
      for (int64_t j = 0; j < L; ++j) {
        dw[at(j)] = 0;
        for (int64_t e = 0; weights[at(j)] != 0 && e < E; ++e) {
          dw[at(j)] += load(dout, b, h, i, e) * load(v, b, hv, j, e);
          store(dv, b, hv, j, e, load(dv, b, hv, j, e) + weights[at(j)] * load(dout, b, h, i, e));
        }
        delta += weights[at(j)] * dw[at(j)];
      }
      for (int64_t j = 0; j < L; ++j)
        for (int64_t d = 0; d < D; ++d) {
          const double ds = scale * weights[at(j)] * (dw[at(j)] - delta);
          dq[at(i * D + d)] += ds * head.k[at(j * D + d)];
          dk[at(j * D + d)] += ds * head.q[at(i * D + d)];
        }
    }
    for (int64_t j = 0; j < L; ++j) {
      double along = 0;
      for (int64_t d = 0; d < D; ++d) along += head.k[at(j * D + d)] * dk[at(j * D + d)];
      for (int64_t d = 0; d < D; ++d) {
        const double across = dk[at(j * D + d)] - head.k[at(j * D + d)] * along;
        const double through = head.norm[at(j)] > 0 ? across / head.norm[at(j)] : 0;
        store(gradients.dq, b, h, j, d, dq[at(j * D + d)] + through);
      }
    }
  });
  for_each_row(v.shape, [&](int64_t b, int64_t h, int64_t i) {
    for (int64_t e = 0; e < E; ++e) store(gradients.dv, b, h, i, e, load(dv, b, h, i, e));
  });
}

}  // namespace attend::reference
