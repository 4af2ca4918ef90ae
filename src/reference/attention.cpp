// Attention as its formula says it: scalar, in double, one row at a time.
#include "reference/attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <variant>
#include <vector>

#include "base/elements.hpp"
#include "base/random.hpp"
#include "base/threads.hpp"
#include "reference/lens.hpp"
#include "reference/row_statistics.hpp"

namespace attend::reference {
namespace {

using std::int64_t;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// ---- Masks ----

int64_t per_batch(const SharedInts& values, int64_t b) {
  return values->size() == 1 ? values->front() : (*values)[static_cast<std::size_t>(b)];
}

// The queries and keys whose positions count together: all of them, or those of one segment.
struct Span {
  int64_t first_query = 0, queries = 0;
  int64_t first_key = 0, keys = 0;
};

// The span of query i: empty when there are segments and i lies in none; that of the mask around where there are none.
Span span_of(const Mask& mask, int64_t i, const Span& around) {
  for (const MaskRule& rule : mask.rules) {
    const auto* segments = std::get_if<SegmentsRule>(&rule);
    if (segments == nullptr) continue;
    const auto& q = *segments->queries;
    const auto& k = *segments->keys;
    const auto end = std::upper_bound(q.begin(), q.end(), i);  // the first boundary past i
    if (end == q.end()) return {};
    const auto s = static_cast<std::size_t>(end - q.begin()) - 1;
    return {q[s], q[s + 1] - q[s], k[s], k[s + 1] - k[s]};
  }
  return around;
}

// p(i): the key position, within the span, that query i stands at.
int64_t position(const Diagonal& diagonal, int64_t b, int64_t i, const Span& span) {
  int64_t offset = 0;
  if (diagonal.offsets != nullptr) {
    offset = per_batch(diagonal.offsets, b);
  } else if (diagonal.align == Align::last_key) {
    offset = span.keys - span.queries;
  }
  return i - span.first_query + offset;
}

int64_t floor_divide(int64_t a, int64_t b) {
  return a / b - (a % b < 0 ? 1 : 0);
}

bool allowed(const Mask& mask, const Span& span, int64_t b, int64_t h, int64_t i, int64_t j);

// One rule, asked about one query and one key.
struct Allows {
  const Span& span;
  int64_t b, h, i, j;

  int64_t key() const { return j - span.first_key; }  // position of j within the span

  bool operator()(const CausalRule& rule) const { return key() <= position(rule.diagonal, b, i, span); }
  bool operator()(const WindowRule& rule) const {
    const int64_t p = position(rule.diagonal, b, i, span);
    return (rule.left == kUnlimited || key() >= p - rule.left) && (rule.right == kUnlimited || key() <= p + rule.right);
  }
  bool operator()(const PaddingRule& rule) const {
    return (rule.starts == nullptr || j >= per_batch(rule.starts, b)) &&
           (rule.ends == nullptr || j < per_batch(rule.ends, b));
  }
  bool operator()(const PrefixRule& rule) const {
    return key() < per_batch(rule.lengths, b) || key() <= position(rule.diagonal, b, i, span);
  }
  bool operator()(const SegmentsRule&) const { return key() >= 0 && key() < span.keys; }
  bool operator()(const BlocksRule& rule) const {
    const int64_t head = rule.heads == 1 ? 0 : h;
    const int64_t row = i / rule.block_queries;
    const int64_t col = j / rule.block_keys;
    return (*rule.bits)[static_cast<std::size_t>((head * rule.rows + row) * rule.cols + col)] != 0;
  }
  bool operator()(const DenseRule& rule) const {
    const int64_t place[4] = {b, h, i, j};
    int64_t offset = 0;
    for (std::size_t d = 0; d < 4; ++d) offset += (rule.shape[d] == 1 ? 0 : place[d]) * rule.strides[d];
    return rule.data[offset] != 0;
  }
  bool operator()(const ChunksRule& rule) const {
    const int64_t query_chunk = floor_divide(position(rule.diagonal, b, i, span), rule.size);
    const int64_t key_chunk = floor_divide(key(), rule.size);
    return key_chunk >= query_chunk - rule.back && key_chunk <= query_chunk;
  }
  bool operator()(const DilatedRule& rule) const {
    return (position(rule.diagonal, b, i, span) - key()) % rule.step == 0;
  }
  bool operator()(const ColumnsRule& rule) const {
    const int64_t column = key() - floor_divide(key(), rule.period) * rule.period;
    return column >= rule.first && column < rule.first + rule.count;
  }
  bool operator()(const TokensRule& rule) const {
    const auto listed = [&](int64_t at) {
      return std::binary_search(rule.positions->begin(), rule.positions->end(), at);
    };
    return listed(key()) || (rule.queries && listed(position(rule.diagonal, b, i, span)));
  }
  bool operator()(const AnyRule& rule) const {
    const bool any = std::any_of(rule.masks->begin(), rule.masks->end(),
                                 [&](const Mask& mask) { return allowed(mask, span_of(mask, i, span), b, h, i, j); });
    return any != rule.none;
  }
};

bool allowed(const Mask& mask, const Span& span, int64_t b, int64_t h, int64_t i, int64_t j) {
  return std::all_of(mask.rules.begin(), mask.rules.end(),
                     [&](const MaskRule& rule) { return std::visit(Allows{span, b, h, i, j}, rule); });
}

// ---- Numbers ----

// A vector whose indices are sizes, which are signed.
template <class T>
struct Array {
  explicit Array(int64_t size, T value = T{}) : data(static_cast<std::size_t>(size), value) {}
  T& operator[](int64_t i) { return data[static_cast<std::size_t>(i)]; }
  const T& operator[](int64_t i) const { return data[static_cast<std::size_t>(i)]; }

  std::vector<T> data;
};

// The rows of one head in double.
struct Rows {
  Rows(int64_t rows, int64_t cols) : length(rows), dim(cols), data(rows * cols) {}
  Rows(const View& x, int64_t b, int64_t h) : Rows(x.length(), x.dim()) {
    for (int64_t i = 0; i < length; ++i) {
      for (int64_t d = 0; d < dim; ++d) (*this)(i, d) = load(x, b, h, i, d);
    }
  }
  void store_to(const MutableView& x, int64_t b, int64_t h) const {
    for (int64_t i = 0; i < length; ++i) {
      for (int64_t d = 0; d < dim; ++d) store(x, b, h, i, d, (*this)(i, d));
    }
  }
  double& operator()(int64_t i, int64_t d) { return data[i * dim + d]; }
  double operator()(int64_t i, int64_t d) const { return data[i * dim + d]; }

  int64_t length, dim;
  Array<double> data;
};

double dot(const Rows& x, int64_t i, const Rows& y, int64_t j) {
  double sum = 0;
  for (int64_t d = 0; d < x.dim; ++d) sum += x(i, d) * y(j, d);
  return sum;
}

// y[j] += factor * x[i]
void add_row(Rows& y, int64_t j, double factor, const Rows& x, int64_t i) {
  for (int64_t d = 0; d < x.dim; ++d) y(j, d) += factor * x(i, d);
}

// Where (b, h, i, j) lies in a shape whose dimensions of size 1 are repeated.
Shape broadcast(const Shape& shape, const Shape& place) {
  Shape at{};
  for (std::size_t d = 0; d < 4; ++d) at[d] = shape[d] == 1 ? 0 : place[d];
  return at;
}

double load_broadcast(const View& x, const Shape& place) {
  const auto [b, h, i, j] = broadcast(x.shape, place);
  return load(x, b, h, i, j);
}

// The gradient of a broadcast argument: the sum over its repeated dimensions.
struct BroadcastGradient {
  explicit BroadcastGradient(const MutableView& view)
      : target(view), strides(contiguous_strides(view.shape)), data(view.shape[0] * strides[0]) {}

  void add(const Shape& place, double value) {
    const auto [b, h, i, j] = broadcast(target.shape, place);
    data[offset_of(strides, b, h, i, j)] += value;
  }
  void store_all() const {
    if (data.data.empty()) return;
    for (int64_t b = 0; b < target.shape[0]; ++b) {
      for (int64_t h = 0; h < target.shape[1]; ++h) {
        for (int64_t i = 0; i < target.shape[2]; ++i) {
          for (int64_t j = 0; j < target.shape[3]; ++j) {
            store(target, b, h, i, j, data[offset_of(strides, b, h, i, j)]);
          }
        }
      }
    }
  }

  MutableView target;
  Strides strides;
  Array<double> data;
};

// ---- One row of the softmax ----

double scale_of(const AttentionOptions& options, int64_t D) {
  return options.scale.value_or(1 / std::sqrt(static_cast<double>(D)));
}

// What query i sees. Of a masked key nothing is used: its score stays 0 here and its weight is exactly 0.
struct Row {
  explicit Row(int64_t N) : visible(N), capped(N), cap_slopes(N, 1), scores(N), weights(N), keep(N, 1) {}

  Array<char> visible;
  Array<double> capped;  // scale * q.k, soft-capped: what the rule is given
  Array<double> cap_slopes;
  Array<double> scores;   // what the softmax is given
  Array<double> weights;  // the softmax, before dropout
  Array<double> keep;     // dropout: 0, or 1 / (1 - p)
  double lse = -kInfinity;
  double sink_weight = 0;
};

void fill_scores(Row& row, const AttentionOptions& options, const Rows& q, const Rows& k, int64_t b, int64_t h,
                 int64_t i) {
  const int64_t N = k.length;
  const double scale = scale_of(options, q.dim);
  const Span span = span_of(options.mask, i, {0, q.length, 0, N});
  for (int64_t j = 0; j < N; ++j) {
    row.visible[j] = allowed(options.mask, span, b, h, i, j);
    if (!row.visible[j]) continue;
    double s = scale * dot(q, i, k, j);
    if (options.softcap != 0) {
      const double x = s / options.softcap, cosh = std::cosh(x);
      s = options.softcap * std::tanh(x);
      row.cap_slopes[j] = 1 / cosh / cosh;  // 1 - tanh^2 would leave nothing where tanh is nearly 1
    }
    row.capped[j] = s;
  }
  row.scores = row.capped;
  if (options.rule) options.rule.forward_f64({row.scores.data.data(), N, 1, N, b, h, i, 0});
  for (int64_t j = 0; j < N; ++j) {
    if (!row.visible[j]) continue;
    double bias = options.bias ? load_broadcast(*options.bias, {b, h, i, j}) : 0;
    if (options.distance_bias) bias = load_broadcast(*options.distance_bias, {0, h, 0, q.length - 1 + j - i});
    row.scores[j] = bias == -kInfinity ? bias : row.scores[j] + bias;  // it hides the key, were its score a NaN
    if (options.alibi_slopes) {
      const int64_t distance = position(options.alibi_diagonal, b, i, span) - (j - span.first_key);
      row.scores[j] -= load_broadcast(*options.alibi_slopes, {b, h, 0, 0}) * std::abs(static_cast<double>(distance));
    }
    if (row.scores[j] == -kInfinity) row.visible[j] = 0;  // of a hidden key nothing is used, not even 0 * v
  }
}

// softmax(s)_j = exp(s_j) / (sum of exp + exp(sink)), shifted by the largest so that exp stays finite.
void fill_weights(Row& row, std::optional<double> sink) {
  const int64_t N = static_cast<int64_t>(row.scores.data.size());
  double largest = sink.value_or(-kInfinity);
  for (int64_t j = 0; j < N; ++j) {
    if (row.visible[j] && row.scores[j] > largest) largest = row.scores[j];
  }
  if (largest == -kInfinity) largest = 0;  // nothing to see: every exp is 0, and so is the sum

  row.sink_weight = sink ? std::exp(*sink - largest) : 0;
  double sum = row.sink_weight;
  for (int64_t j = 0; j < N; ++j) {
    if (!row.visible[j]) continue;
    row.weights[j] = std::exp(row.scores[j] - largest);
    sum += row.weights[j];
  }
  row.lse = largest + std::log(sum);
  if (sum == 0) return;
  for (int64_t j = 0; j < N; ++j) {
    if (row.visible[j]) row.weights[j] /= sum;
  }
  row.sink_weight /= sum;
}

Row make_row(const AttentionOptions& options, const Rows& q, const Rows& k, int64_t b, int64_t h, int64_t i) {
  stop_if_asked();
  Row row(k.length);
  fill_scores(row, options, q, k, b, h, i);
  fill_weights(row, options.sinks ? std::optional(load(*options.sinks, 0, h, 0, 0)) : std::nullopt);
  const auto& [probability, seed] = options.dropout;
  if (probability > 0) {
    const std::uint32_t threshold = dropout_threshold(probability);
    for (int64_t j = 0; j < k.length; ++j) {
      row.keep[j] = dropout_bits(seed, b, h, i, j) >= threshold ? 1 / (1 - probability) : 0;
    }
  }
  return row;
}

}  // namespace

bool visible(const Mask& mask, int64_t b, int64_t h, int64_t i, int64_t j, int64_t M, int64_t N) {
  return allowed(mask, span_of(mask, i, {0, M, 0, N}), b, h, i, j);
}

int64_t key_position(const Mask& mask, const Diagonal& diagonal, int64_t b, int64_t i, int64_t M, int64_t N) {
  const Span span = span_of(mask, i, {0, M, 0, N});
  return span.first_key + position(diagonal, b, i, span);
}

void for_weight_rows(const View& q, const View& k, const AttentionOptions& options, int64_t b, int64_t h, int64_t first,
                     int64_t count, const WeightRow& f) {
  const Rows q_rows(q, b, h), k_rows(k, b, h / (q.heads() / k.heads()));
  for (int64_t i = first; i < first + count; ++i) {
    const Row row = make_row(options, q_rows, k_rows, b, h, i);
    f(i, row.weights.data, row.visible.data);
  }
}

void attention(View q, View k, View v, MutableView out, const AttentionOptions& options,
               const AttentionExtras& extras) {
  const int64_t B = q.batch(), H = q.heads(), M = q.length(), N = k.length(), E = v.dim();
  if (H == 0 || M == 0) return;  // else an empty loop might run 2^62 times
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t h = 0; h < H; ++h) {
      const int64_t hk = h / (H / k.heads());
      const Rows q_rows(q, b, h), k_rows(k, b, hk), v_rows(v, b, hk);
      Rows out_rows(M, E);
      for (int64_t i = 0; i < M; ++i) {
        const Row row = make_row(options, q_rows, k_rows, b, h, i);
        for (int64_t j = 0; j < N; ++j) {
          if (row.visible[j]) add_row(out_rows, i, row.weights[j] * row.keep[j], v_rows, j);
          if (extras.weights) store(*extras.weights, b, h, i, j, row.weights[j]);
        }
        if (extras.lse) store(*extras.lse, b, h, i, 0, row.lse);
        if (extras.statistics) {
          const RowStatisticsOptions& asked = extras.statistics->options;
          const int64_t p = key_position(options.mask, asked.diagonal, b, i, M, N);
          const auto statistics = row_statistics(row.weights.data, p, b, asked);
          for (int64_t n = 0; n < kRowStatistics; ++n)
            store(extras.statistics->rows, b, h, i, n, statistics[static_cast<std::size_t>(n)]);
        }
      }
      out_rows.store_to(out, b, h);
    }
  }
}

namespace {

// The gradients of one head, summed in double.
struct HeadGradients {
  Rows& dq;
  Rows& dk;
  Rows& dv;
  BroadcastGradient* dbias;
  BroadcastGradient* dsinks;
  BroadcastGradient* ddistance_bias;
};

// With w the weights, z the dropout and y = sum of w z v: dw_j = z_j (dy . v_j), ds_j = w_j (dw_j - sum of w dw).
void backward_row(const HeadGradients& to, const AttentionOptions& options, const Rows& dout, const Rows& q,
                  const Rows& k, const Rows& v, int64_t b, int64_t h, int64_t i) {
  const int64_t N = k.length;
  const Row row = make_row(options, q, k, b, h, i);
  Array<double> dw(N);
  double delta = 0;
  for (int64_t j = 0; j < N; ++j) {
    if (!row.visible[j]) continue;
    add_row(to.dv, j, row.weights[j] * row.keep[j], dout, i);
    dw[j] = row.keep[j] * dot(dout, i, v, j);
    delta += row.weights[j] * dw[j];
  }
  if (to.dsinks != nullptr) to.dsinks->add({0, h, 0, 0}, -row.sink_weight * delta);

  Array<double> ds(N);
  for (int64_t j = 0; j < N; ++j) {
    if (!row.visible[j]) continue;
    ds[j] = row.weights[j] * (dw[j] - delta);
    if (to.dbias != nullptr) to.dbias->add({b, h, i, j}, ds[j]);
    if (to.ddistance_bias != nullptr) to.ddistance_bias->add({0, h, 0, q.length - 1 + j - i}, ds[j]);
  }
  if (options.rule) {
    options.rule.backward_f64({row.capped.data.data(), N, 1, N, b, h, i, 0}, {ds.data.data(), N, 1, N, b, h, i, 0});
  }
  const double scale = scale_of(options, q.dim);
  for (int64_t j = 0; j < N; ++j) {
    if (!row.visible[j]) continue;
    const double dqk = scale * ds[j] * row.cap_slopes[j];
    add_row(to.dq, i, dqk, k, j);
    add_row(to.dk, j, dqk, q, i);
  }
}

}  // namespace

void attention_backward(View dout, View q, View k, View v, const AttentionGradients& gradients,
                        const AttentionOptions& options) {
  std::optional<BroadcastGradient> dbias, dsinks, ddistance_bias;
  if (gradients.dbias) dbias.emplace(*gradients.dbias);
  if (gradients.dsinks) dsinks.emplace(*gradients.dsinks);
  if (gradients.ddistance_bias) ddistance_bias.emplace(*gradients.ddistance_bias);

  const int64_t Hk = k.heads();
  const int64_t B = Hk == 0 ? 0 : k.batch();
  const int64_t group = Hk == 0 ? 0 : q.heads() / Hk;
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t hk = 0; hk < Hk; ++hk) {
      const Rows k_rows(k, b, hk), v_rows(v, b, hk);
      Rows dk(k.length(), k.dim()), dv(v.length(), v.dim());
      for (int64_t h = hk * group; h < (hk + 1) * group; ++h) {
        const Rows q_rows(q, b, h), dout_rows(dout, b, h);
        Rows dq(q.length(), q.dim());
        const HeadGradients to{dq,
                               dk,
                               dv,
                               dbias ? &*dbias : nullptr,
                               dsinks ? &*dsinks : nullptr,
                               ddistance_bias ? &*ddistance_bias : nullptr};
        for (int64_t i = 0; i < q.length(); ++i) {
          backward_row(to, options, dout_rows, q_rows, k_rows, v_rows, b, h, i);
        }
        dq.store_to(gradients.dq, b, h);
      }
      dk.store_to(gradients.dk, b, hk);
      dv.store_to(gradients.dv, b, hk);
    }
  }
  if (dbias) dbias->store_all();
  if (dsinks) dsinks->store_all();
  if (ddistance_bias) ddistance_bias->store_all();
}

}  // namespace attend::reference
