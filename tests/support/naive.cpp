// The naive method, written once for float and double, with or without rounding to a half type.
#include "support/naive.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/random.hpp"

namespace attend::test {
namespace {

using std::int64_t;

constexpr int64_t kRows = 16;  // queries worked on together

std::size_t at(int64_t index) {
  return static_cast<std::size_t>(index);
}

// Rows padded with zeros, so that products need no tails; the extra width keeps columns out of one cache set.
template <class T>
struct Matrix {
  Matrix(int64_t rows, int64_t cols)
      : stride((cols + 15) / 16 * 16 + 16), data(at((rows + 4) * ((cols + 15) / 16 * 16 + 16))) {}

  T* row(int64_t r) { return data.data() + r * stride; }
  const T* row(int64_t r) const { return data.data() + r * stride; }
  T& operator()(int64_t r, int64_t c) { return row(r)[c]; }
  void clear() { std::fill(data.begin(), data.end(), T(0)); }

  int64_t stride;
  std::vector<T> data;
};

// Two registers of a row; written as vectors because g++ does not find them by itself.
template <class T>
struct Pair {
  typedef T Vector __attribute__((vector_size(16)));
  static constexpr int64_t kWidth = 32 / static_cast<int64_t>(sizeof(T));

  void load(const T* from) {
    std::memcpy(&low, from, 16);
    std::memcpy(&high, from + kWidth / 2, 16);
  }
  void store(T* to) const {
    std::memcpy(to, &low, 16);
    std::memcpy(to + kWidth / 2, &high, 16);
  }

  Vector low, high;
};

// c[r][j] += sum over n of a(r, n) * b[n][j], one term after the other; a(r, n) = a[r * a_row + n * a_inner].
// Rows and columns are padded: r runs to a multiple of 4, j from and to a multiple of the width.
template <class T>
void add_product(int64_t rows, int64_t inner, int64_t first, int64_t last, const T* a, int64_t a_row, int64_t a_inner,
                 const T* b, int64_t b_row, T* c, int64_t c_row) {
  constexpr int64_t kWidth = Pair<T>::kWidth;
  for (int64_t j = first / kWidth * kWidth; j < last; j += kWidth) {
    for (int64_t r = 0; r < rows; r += 4) {
      Pair<T> sum[4];
      for (int64_t t = 0; t < 4; ++t) sum[t].load(c + (r + t) * c_row + j);
      for (int64_t n = 0; n < inner; ++n) {
        Pair<T> line;
        line.load(b + n * b_row + j);
        for (int64_t t = 0; t < 4; ++t) {
          const T x = a[(r + t) * a_row + n * a_inner];
          sum[t].low += x * line.low;
          sum[t].high += x * line.high;
        }
      }
      for (int64_t t = 0; t < 4; ++t) sum[t].store(c + (r + t) * c_row + j);
    }
  }
}

float rounded(DType dtype, float x) {
  if (dtype == DType::bf16) return to_float(to_bfloat16(x));
  if (dtype == DType::f16) return to_float(to_float16(x));
  return x;
}
double rounded(DType, double x) {
  return x;
}

const auto& forward_of(const ScoreRule& rule, float) {
  return rule.forward_f32;
}
const auto& forward_of(const ScoreRule& rule, double) {
  return rule.forward_f64;
}
const auto& backward_of(const ScoreRule& rule, float) {
  return rule.backward_f32;
}
const auto& backward_of(const ScoreRule& rule, double) {
  return rule.backward_f64;
}

// One KV head of one batch with its keys and values, and the query heads that read it.
template <class T>
class Naive {
 public:
  Naive(const Problem& problem, DType dtype, Results& results, Magnitudes* magnitudes, bool weights)
      : p_(problem),
        c_(problem.info),
        dtype_(dtype),
        options_(problem.options(dtype)),
        r_(results),
        m_(magnitudes),
        weights_(weights),
        k_(c_.N, c_.D),
        k_t_(c_.D, c_.N),
        v_(c_.N, c_.E),
        v_abs_(c_.N, c_.E),
        v_t_(c_.E, c_.N),
        q_(kRows, c_.D),
        do_(kRows, c_.E),
        s_(kRows, c_.N),
        capped_(kRows, c_.N),
        cap_slopes_(kRows, c_.N),
        prob_(kRows, c_.N),
        w_(kRows, c_.N),
        keep_(kRows, c_.N),
        dw_(kRows, c_.N),
        ds_(kRows, c_.N),
        o_(kRows, c_.E),
        o_abs_(kRows, c_.E),
        dq_(kRows, c_.D),
        dk_(c_.N, c_.D),
        dv_(c_.N, c_.E) {
    allocate();
  }

  void run() {
    for (int64_t b = 0; b < c_.B; ++b) {
      for (int64_t hk = 0; hk < c_.Hk; ++hk) {
        load_keys(b, hk);
        const int64_t group = c_.H / c_.Hk;
        for (int64_t h = hk * group; h < (hk + 1) * group; ++h) {
          for (int64_t i = 0; i < c_.M; i += kRows) run_block(b, h, i, std::min(kRows, c_.M - i));
        }
        if (c_.backward) store_keys(b, hk);
      }
    }
    r_.dbias.assign(dbias_.begin(), dbias_.end());
    r_.dsinks.assign(dsinks_.begin(), dsinks_.end());
    if (m_ != nullptr && c_.backward) finish_magnitudes();
  }

 private:
  T round(T x) const { return rounded(dtype_, x); }

  void allocate() {
    const int64_t rows = c_.B * c_.H * c_.M;
    const int64_t keys = c_.B * c_.Hk * c_.N;
    r_.out.resize(at(rows * c_.E));
    r_.lse.resize(at(rows));
    if (weights_) r_.weights.resize(at(rows * c_.N));
    if (c_.backward) {
      r_.dq.resize(at(rows * c_.D));
      r_.dk.resize(at(keys * c_.D));
      r_.dv.resize(at(keys * c_.E));
      dbias_.resize(p_.bias.size());
      dsinks_.resize(p_.sinks.size());
    }
    if (m_ == nullptr) return;
    m_->score.resize(at(rows));
    m_->weighted.resize(at(rows * c_.E));
    m_->out.resize(at(rows * c_.E));
    for (auto* row : {&m_->dq, &m_->dq_delta}) row->resize(at(rows));
    for (auto* key : {&m_->dk, &m_->dk_delta, &m_->dv}) key->resize(at(keys));
    for (auto* place : {&m_->dbias, &m_->dbias_delta}) place->resize(p_.bias.size());
    for (auto* head : {&m_->dsinks, &m_->dsinks_delta}) head->resize(p_.sinks.size());
  }

  void load_keys(int64_t b, int64_t hk) {
    const float* k = p_.k.data() + (b * c_.Hk + hk) * c_.N * c_.D;
    const float* v = p_.v.data() + (b * c_.Hk + hk) * c_.N * c_.E;
    v_max_.assign(at(c_.E), T(0));
    k_max_ = 0;
    for (int64_t j = 0; j < c_.N; ++j) {
      for (int64_t d = 0; d < c_.D; ++d) {
        k_(j, d) = k_t_(d, j) = T(k[j * c_.D + d]);
        k_max_ = std::max(k_max_, std::abs(k_(j, d)));
      }
      for (int64_t e = 0; e < c_.E; ++e) {
        v_(j, e) = v_t_(e, j) = T(v[j * c_.E + e]);
        v_abs_(j, e) = std::abs(v_(j, e));
        v_max_[at(e)] = std::max(v_max_[at(e)], v_abs_(j, e));
      }
    }
    dk_.clear();
    dv_.clear();
  }

  void store_keys(int64_t b, int64_t hk) {
    const T scale = T(p_.scale());
    for (int64_t j = 0; j < c_.N; ++j) {
      const int64_t row = (b * c_.Hk + hk) * c_.N + j;
      for (int64_t d = 0; d < c_.D; ++d) r_.dk[at(row * c_.D + d)] = round(scale * dk_(j, d));
      for (int64_t e = 0; e < c_.E; ++e) r_.dv[at(row * c_.E + e)] = round(dv_(j, e));
    }
  }

  void run_block(int64_t b, int64_t h, int64_t i, int64_t count) {
    for (Matrix<T>* m : {&q_, &do_, &s_, &prob_, &w_, &keep_, &dw_, &ds_, &o_, &o_abs_, &dq_}) m->clear();
    int64_t first = c_.N;  // of the keys that any of these queries sees
    int64_t last = 0;
    for (int64_t t = 0; t < count; ++t) {
      const int64_t row = (b * c_.H + h) * c_.M + i + t;
      for (int64_t d = 0; d < c_.D; ++d) q_(t, d) = T(p_.q[at(row * c_.D + d)]);
      for (int64_t e = 0; e < c_.E; ++e) do_(t, e) = T(p_.dout[at(row * c_.E + e)]);
      const std::uint8_t* visible = p_.visible_row(b, h, i + t);
      for (int64_t j = 0; j < c_.N; ++j) {
        if (visible[j] == 0) continue;
        first = std::min(first, j);
        last = std::max(last, j + 1);
      }
    }
    first = std::min(first, last);
    add_product<T>(kRows, c_.D, first, last, q_.row(0), q_.stride, 1, k_t_.row(0), k_t_.stride, s_.row(0), s_.stride);
    for (int64_t t = 0; t < count; ++t) weigh(b, h, i + t, t, first, last);

    // Weights after dropout, against values.
    const int64_t inner = last - first;
    add_product<T>(kRows, inner, 0, c_.E, w_.row(0) + first, w_.stride, 1, v_.row(first), v_.stride, o_.row(0),
                   o_.stride);
    if (m_ != nullptr) {
      add_product<T>(kRows, inner, 0, c_.E, w_.row(0) + first, w_.stride, 1, v_abs_.row(first), v_abs_.stride,
                     o_abs_.row(0), o_abs_.stride);
    }
    for (int64_t t = 0; t < count; ++t) store_row(b, h, i + t, t);
    if (!c_.backward) return;

    add_product<T>(kRows, c_.E, first, last, do_.row(0), do_.stride, 1, v_t_.row(0), v_t_.stride, dw_.row(0),
                   dw_.stride);
    for (int64_t t = 0; t < count; ++t) differentiate(b, h, i + t, t, first, last);
    add_product<T>(kRows, inner, 0, c_.D, ds_.row(0) + first, ds_.stride, 1, k_.row(first), k_.stride, dq_.row(0),
                   dq_.stride);
    // Transposed: rows are keys, padded to 4 by the columns of w and ds, which are zero past the end.
    add_product<T>(inner, kRows, 0, c_.E, w_.row(0) + first, 1, w_.stride, do_.row(0), do_.stride, dv_.row(first),
                   dv_.stride);
    add_product<T>(inner, kRows, 0, c_.D, ds_.row(0) + first, 1, ds_.stride, q_.row(0), q_.stride, dk_.row(first),
                   dk_.stride);
    const T scale = T(p_.scale());
    for (int64_t t = 0; t < count; ++t) {
      const int64_t row = (b * c_.H + h) * c_.M + i + t;
      for (int64_t d = 0; d < c_.D; ++d) r_.dq[at(row * c_.D + d)] = round(scale * dq_(t, d));
    }
  }

  // From dot products to weights.
  void weigh(int64_t b, int64_t h, int64_t i, int64_t t, int64_t first, int64_t last) {
    const int64_t row = (b * c_.H + h) * c_.M + i;
    const std::uint8_t* visible = p_.visible_row(b, h, i);
    T* s = s_.row(t);
    T* w = prob_.row(t);
    const T scale = T(p_.scale());
    const T cap = T(c_.softcap);
    for (int64_t j = first; j < last; ++j) {
      s[j] *= scale;
      if (cap != 0) {
        const T x = s[j] / cap, tanh = std::tanh(x), cosh = std::cosh(x);
        // The truth must not lose it where tanh is nearly 1; the method in floats may.
        cap_slopes_(t, j) = std::is_same_v<T, float> ? 1 - tanh * tanh : 1 / cosh / cosh;
        s[j] = cap * tanh;
      }
      capped_(t, j) = s[j];
    }
    if (options_.rule) forward_of(options_.rule, T())({s, s_.stride, 1, c_.N, b, h, i, 0});
    T largest = p_.sinks.empty() ? -std::numeric_limits<T>::infinity() : T(p_.sinks[at(h)]);
    T magnitude = std::isinf(largest) ? T(0) : std::abs(largest);
    for (int64_t j = first; j < last; ++j) {
      if (visible[j] == 0) continue;
      if (!p_.bias.empty()) s[j] += T(p_.bias[bias_index(b, h, i, j)]);
      if (!p_.slopes.empty()) s[j] -= slope(b, h) * T(p_.distance(i, j));
      s[j] = round(s[j]);
      largest = std::max(largest, s[j]);
      if (!std::isinf(s[j])) magnitude = std::max(magnitude, std::abs(s[j]));
    }
    if (m_ != nullptr) m_->score[at(row)] = 1 + static_cast<double>(magnitude);
    r_.lse[at(row)] = -std::numeric_limits<double>::infinity();
    sink_weight_[t] = 0;
    if (std::isinf(largest)) return;

    T total = 0;
    for (int64_t j = first; j < last; ++j) {
      if (visible[j] == 0) continue;
      w[j] = std::exp(s[j] - largest);
      total += w[j];
    }
    if (!p_.sinks.empty()) {
      sink_weight_[t] = std::exp(T(p_.sinks[at(h)]) - largest);
      total += sink_weight_[t];
      sink_weight_[t] /= total;
    }
    r_.lse[at(row)] = static_cast<double>(largest) + std::log(static_cast<double>(total));
    for (int64_t j = first; j < last; ++j) {
      if (visible[j] == 0) continue;
      w[j] = round(w[j] / total);
      if (weights_) r_.weights[at(row * c_.N + j)] = static_cast<double>(w[j]);
      keep_(t, j) = T(1);
      if (c_.dropout != 0) {
        const bool kept =
            dropout_bits(options_.dropout.seed, b, h, i, j) >= dropout_threshold(options_.dropout.probability);
        keep_(t, j) = kept ? T(1 / (1 - c_.dropout)) : T(0);
      }
      w_(t, j) = round(w[j] * keep_(t, j));
    }
  }

  void store_row(int64_t b, int64_t h, int64_t i, int64_t t) {
    const int64_t row = (b * c_.H + h) * c_.M + i;
    T squares = 0;
    for (int64_t j = 0; m_ != nullptr && j < c_.N; ++j) squares += w_(t, j) * w_(t, j);
    for (int64_t e = 0; e < c_.E; ++e) {
      const std::size_t place = at(row * c_.E + e);
      o_(t, e) = round(o_(t, e));
      r_.out[place] = static_cast<double>(o_(t, e));
      if (m_ == nullptr) continue;
      m_->weighted[place] = static_cast<double>(o_abs_(t, e));
      m_->out[place] = m_->score[at(row)] * static_cast<double>(std::sqrt(squares) * v_max_[at(e)]) +
                       std::abs(static_cast<double>(o_(t, e)));
    }
  }

  // From d/d(weight) to d/d(scaled dot product), for one query.
  void differentiate(int64_t b, int64_t h, int64_t i, int64_t t, int64_t first, int64_t last) {
    T delta = 0;
    for (int64_t e = 0; e < c_.E; ++e) delta += do_(t, e) * o_(t, e);
    T* ds = ds_.row(t);
    for (int64_t j = first; j < last; ++j) {
      ds[j] = prob_(t, j) * (round(keep_(t, j) * dw_(t, j)) - delta);
      if (!p_.bias.empty()) dbias_[bias_index(b, h, i, j)] += round(ds[j]);
    }
    if (!p_.sinks.empty()) dsinks_[at(h)] -= sink_weight_[t] * delta;
    if (m_ != nullptr) measure(b, h, i, t, first, last, delta);
    if (options_.rule) {
      backward_of(options_.rule, T())({capped_.row(t), capped_.stride, 1, c_.N, b, h, i, 0},
                                      {ds, ds_.stride, 1, c_.N, b, h, i, 0});
    }
    for (int64_t j = first; j < last; ++j) ds[j] = round(ds[j] * cap_slope(t, j));
  }

  T cap_slope(int64_t t, int64_t j) const { return c_.softcap == 0 ? T(1) : cap_slopes_.row(t)[j]; }

  // What one unit of rounding does to this row's gradients, and to those of the keys it sees.
  void measure(int64_t b, int64_t h, int64_t i, int64_t t, int64_t first, int64_t last, T delta) {
    const int64_t row = (b * c_.H + h) * c_.M + i;
    const int64_t key = (b * c_.Hk + h / (c_.H / c_.Hk)) * c_.N;
    double norm = 0;          // of dout
    double product_norm = 0;  // of dout * out
    double q_max = 0;
    double do_max = 0;
    for (int64_t e = 0; e < c_.E; ++e) {
      const double g = static_cast<double>(do_(t, e));
      norm += g * g;
      product_norm += g * g * static_cast<double>(o_(t, e) * o_(t, e));
      do_max = std::max(do_max, std::abs(g));
    }
    product_norm = std::sqrt(product_norm);
    for (int64_t d = 0; d < c_.D; ++d) q_max = std::max(q_max, std::abs(static_cast<double>(q_(t, d))));
    const double v_max = c_.E == 0 ? 0 : static_cast<double>(*std::max_element(v_max_.begin(), v_max_.end()));
    const double dot = std::sqrt(norm) * v_max;  // the size of the terms of dout . v
    const double scale = std::abs(p_.scale());
    std::vector<T> slope(at(c_.N), T(1));  // of the rule
    if (options_.rule) {
      backward_of(options_.rule, T())({capped_.row(t), capped_.stride, 1, c_.N, b, h, i, 0},
                                      {slope.data(), c_.N, 1, c_.N, b, h, i, 0});
    }
    // Weights are made anew from the LSE, whose own rounding counts like that of a score.
    const double lse = r_.lse[at(row)];
    const double score = m_->score[at(row)] + (std::isinf(lse) ? 0 : std::abs(lse));
    double row_sum = 0;
    double row_delta = 0;
    // One delta is in every key of the row: where they share an element of the bias, its error does not average out.
    const bool shared = !p_.bias.empty() && p_.bias_shape[3] == 1;
    double bias_delta = 0;
    for (int64_t j = first; j < last; ++j) {
      const double weight = static_cast<double>(prob_(t, j));
      const double term = std::abs(static_cast<double>(keep_(t, j) * dw_(t, j))) + std::abs(static_cast<double>(delta));
      const double x = weight * (score * term + dot * std::max(1.0, static_cast<double>(keep_(t, j))));
      const double x_delta = weight * product_norm;
      if (!p_.bias.empty()) {
        m_->dbias[bias_index(b, h, i, j)] += x * x;
        if (shared)
          bias_delta += x_delta;
        else
          m_->dbias_delta[bias_index(b, h, i, j)] += x_delta * x_delta;
      }
      const double chain = std::abs(static_cast<double>(slope[at(j)] * cap_slope(t, j))) * scale;
      row_sum += chain * x * chain * x;
      row_delta += chain * x_delta * chain * x_delta;
      const double k_term = chain * q_max;
      m_->dk[at(key + j)] += k_term * x * k_term * x;
      m_->dk_delta[at(key + j)] += k_term * x_delta * k_term * x_delta;
      const double v_term = score * static_cast<double>(w_(t, j)) * do_max;
      m_->dv[at(key + j)] += v_term * v_term;
    }
    if (shared) m_->dbias_delta[bias_index(b, h, i, 0)] += bias_delta * bias_delta;
    m_->dq[at(row)] = std::sqrt(row_sum) * static_cast<double>(k_max_);
    m_->dq_delta[at(row)] = std::sqrt(row_delta) * static_cast<double>(k_max_);
    if (!p_.sinks.empty()) {
      const double weight = static_cast<double>(sink_weight_[t]);
      const double x = weight * (score * std::abs(static_cast<double>(delta)) + dot);
      m_->dsinks[at(h)] += x * x;
      m_->dsinks_delta[at(h)] += weight * product_norm * weight * product_norm;
    }
  }

  void finish_magnitudes() {  // sums of squares become norms
    for (auto* sums : {&m_->dk, &m_->dk_delta, &m_->dv, &m_->dbias, &m_->dbias_delta, &m_->dsinks, &m_->dsinks_delta}) {
      for (double& x : *sums) x = std::sqrt(x);
    }
  }

  std::size_t bias_index(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const Shape& s = p_.bias_shape;
    return at((((s[0] == 1 ? 0 : b) * s[1] + (s[1] == 1 ? 0 : h)) * s[2] + (s[2] == 1 ? 0 : i)) * s[3] +
              (s[3] == 1 ? 0 : j));
  }

  T slope(int64_t b, int64_t h) const {
    return T(p_.slopes[at((c_.slopes == SlopesKind::by_batch ? b * c_.H : 0) + h)]);
  }

  const Problem& p_;
  const Case& c_;
  DType dtype_;
  const AttentionOptions& options_;
  Results& r_;
  Magnitudes* m_;
  bool weights_;
  Matrix<T> k_, k_t_, v_, v_abs_, v_t_;
  Matrix<T> q_, do_, s_, capped_, cap_slopes_, prob_, w_, keep_, dw_, ds_, o_, o_abs_, dq_;
  Matrix<T> dk_, dv_;
  std::vector<T> v_max_, dbias_, dsinks_;
  T k_max_ = 0;
  T sink_weight_[kRows] = {};
};

}  // namespace

Results naive_attention(const Problem& problem, DType dtype, bool weights) {
  Results results;
  if (dtype == DType::f64) {
    Naive<double>(problem, dtype, results, nullptr, weights).run();
  } else {
    Naive<float>(problem, dtype, results, nullptr, weights).run();
  }
  return results;
}

Truth true_attention(const Problem& problem, bool weights) {
  Truth truth;
  Naive<double>(problem, DType::f64, truth.results, &truth.magnitudes, weights).run();
  return truth;
}

}  // namespace attend::test
