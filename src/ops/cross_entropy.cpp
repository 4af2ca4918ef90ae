// Cross-entropy fused with the projection to the vocabulary: whole rows of logits, some rows at a time.
#include "attend/cross_entropy.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "attend/add.hpp"
#include "base/check.hpp"
#include "base/checked.hpp"
#include "base/elements.hpp"
#include "base/half.hpp"
#include "base/threads.hpp"
#include "cpu/dispatch.hpp"
#include "ops/matmul.hpp"
#include "ops/rows.hpp"
#include "ops/scratch.hpp"
#include "reference/cross_entropy.hpp"

namespace attend {
namespace {

// Of logits at once, at most. More rows do not stay in a cache until their gradients are made; fewer, and the weights
// are packed too often.
constexpr std::int64_t kChunkBytes = 32 << 20, kChunkRows = 1024;

void check_arguments(const char* op, const View& hidden, const View& weight, std::span<const std::int64_t> targets,
                     const CrossEntropyOptions& options) {
  check_readable(op, "hidden", hidden);
  check_readable(op, "weight", weight);
  check_shape(op, "weight", weight.shape, {1, 1, weight.length(), hidden.dim()});
  check_dtype(op, "weight", weight.dtype, hidden.dtype);
  check_equal(op, "number of targets", std::ssize(targets),
              checked_product("rows", {hidden.batch(), hidden.heads(), hidden.length()}), "rows of hidden");
  for (std::size_t n = 0; n < targets.size(); ++n) {
    if (targets[n] == options.ignore_index || (targets[n] >= 0 && targets[n] < weight.length())) continue;
    fail(op, "target " + std::to_string(n) + " is " + std::to_string(targets[n]) + ", expected 0 to " +
                 std::to_string(weight.length() - 1) + ", or " + std::to_string(options.ignore_index) +
                 " for a row to ignore");
  }
}

// One number a row of hidden: f32, or f64 beside f64.
void check_column(const char* op, const char* what, const View& column, const View& hidden) {
  check_shape(op, what, column.shape, {hidden.batch(), hidden.heads(), hidden.length(), 1});
  check_dtype(op, what, column.dtype, hidden.dtype == DType::f64 ? DType::f64 : DType::f32);
}

double load_row_value(const View& column, std::int64_t r) {
  return load_element(column.dtype, column.data, row_start(column.shape, column.strides, r));
}
void store_row_value(const MutableView& column, std::int64_t r, double value) {
  store_element(column.dtype, column.data, row_start(column.shape, column.strides, r), value);
}

template <class Void>
Void* row_data(const BasicView<Void>& x, std::int64_t r) {
  using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
  return static_cast<Byte*>(x.data) + row_start(x.shape, x.strides, r) * size_of(x.dtype);
}
// `cols` elements of one dtype, `stride` elements apart.
void copy_row(DType dtype, const void* from, std::int64_t from_stride, void* to, std::int64_t to_stride,
              std::int64_t cols) {
  if (from_stride == 1 && to_stride == 1) {
    std::memcpy(to, from, static_cast<std::size_t>(cols * size_of(dtype)));
    return;
  }
  for (std::int64_t d = 0; d < cols; ++d)
    store_element(dtype, to, d * to_stride, load_element(dtype, from, d * from_stride));
}
void clear_row(const MutableView& x, std::int64_t r) {
  for (std::int64_t d = 0; d < x.dim(); ++d) store_element(x.dtype, row_data(x, r), d * x.strides[3], 0.0);
}
// What no chunk writes: the rows that are ignored.
void clear_ignored(const MutableView& x, std::span<const std::int64_t> targets, const CrossEntropyOptions& options) {
  for (std::size_t n = 0; n < targets.size(); ++n)
    if (targets[n] == options.ignore_index) clear_row(x, static_cast<std::int64_t>(n));
}

// A matrix of `rows` rows that lie one after the other.
template <class Void>
BasicMatrix<Void> packed(DType dtype, Void* data, std::int64_t rows, std::int64_t cols) {
  return {dtype, data, rows, cols, cols, 1};
}
Matrix transposed(const Matrix& m) {
  return {m.dtype, m.data, m.cols, m.rows, m.col_stride, m.row_stride};
}

// The rows that are not ignored, cut into chunks by the size of the vocabulary alone.
class Chunks {
 public:
  Chunks(const View& hidden, const View& weight, std::span<const std::int64_t> targets,
         const CrossEntropyOptions& options)
      : hidden_(hidden),
        weight_{weight.dtype, weight.data, weight.length(), weight.dim(), weight.strides[2], weight.strides[3]},
        targets_(targets),
        rows_(counted(targets, options)),
        most_(std::min({std::max<std::int64_t>(1, kChunkBytes / 4 / std::max<std::int64_t>(1, weight.length())),
                        kChunkRows, std::ssize(rows_)})),
        own_(checked_product("rows", {most_, weight.dim(), size_of(hidden.dtype)})),
        logits_(checked_product("logits", {most_, weight.length()})),
        largest_(most_),
        sums_(most_) {}

  bool empty() const { return rows_.empty(); }
  std::int64_t width() const { return weight_.cols; }
  std::int64_t vocabulary() const { return weight_.rows; }
  std::int64_t most() const { return most_; }

  // Calls f(count) for every chunk, once its logits are there.
  template <class F>
  void for_each(const F& f) {
    for (first_ = 0; first_ < std::ssize(rows_); first_ += most_) {
      const std::int64_t count = std::min(most_, std::ssize(rows_) - first_);
      for_each_row(count, width(), [&](std::int64_t n) {
        copy_row(hidden_.dtype, row_data(hidden_, row(n)), hidden_.strides[3],
                 own_.data() + n * width() * size_of(hidden_.dtype), 1, width());
      });
      matmul(hidden_rows(count), transposed(weight_), std::nullopt,
             packed<void>(DType::f32, logits_.data(), count, vocabulary()));
      parallel_for(count, [&](std::int64_t n, int) {
        kernels().rows.exp_sum(logits(n), vocabulary(), &largest_[n], &sums_[n]);
      });
      f(count);
    }
  }

  // Of row n of the chunk.
  std::int64_t row(std::int64_t n) const { return rows_[static_cast<std::size_t>(first_ + n)]; }
  std::int64_t target(std::int64_t n) const { return targets_[static_cast<std::size_t>(row(n))]; }
  float* logits(std::int64_t n) const { return logits_.data() + n * vocabulary(); }
  double loss(std::int64_t n) const {
    return static_cast<double>(largest_[n]) - static_cast<double>(logits(n)[target(n)]) + std::log(sums_[n]);
  }

  // The chunk's logits become the gradients of factor(n) * loss(n), as `dtype`, each row from where it began.
  template <class F>
  Matrix gradients(std::int64_t count, DType dtype, const F& factor) const {
    parallel_for(count, [&](std::int64_t n, int) {
      const double given = factor(n);
      const double weight = std::exp(static_cast<double>(logits(n)[target(n)]) - static_cast<double>(largest_[n]));
      const auto at_target = static_cast<float>(given * (weight / sums_[n] - 1));
      float* to = logits(n);
      kernels().rows.scaled_exp(to, vocabulary(), largest_[n], static_cast<float>(given / sums_[n]), dtype, to);
      kernels().rows.store(dtype, reinterpret_cast<char*>(to) + target(n) * size_of(dtype), 1, 1, &at_target);
    });
    return {dtype, logits_.data(), count, vocabulary(), vocabulary() * (dtype == DType::f32 ? 1 : 2), 1};
  }

  Matrix hidden_rows(std::int64_t count) const {
    return packed<const void>(hidden_.dtype, own_.data(), count, width());
  }
  const Matrix& weight() const { return weight_; }

 private:
  static std::vector<std::int64_t> counted(std::span<const std::int64_t> targets, const CrossEntropyOptions& options) {
    std::vector<std::int64_t> rows;
    for (std::size_t n = 0; n < targets.size(); ++n)
      if (targets[n] != options.ignore_index) rows.push_back(static_cast<std::int64_t>(n));
    return rows;
  }

  View hidden_;
  Matrix weight_;
  std::span<const std::int64_t> targets_;
  std::vector<std::int64_t> rows_;
  std::int64_t most_, first_ = 0;
  Buffer<char> own_;  // the chunk's rows of hidden, one after the other
  Buffer<float> logits_, largest_;
  Buffer<double> sums_;
};

void check_gradients(const char* op, const CrossEntropyGradients& g, const View& hidden, const View& weight) {
  const auto check = [&](const char* what, const std::optional<MutableView>& result, const View& of) {
    if (!result) return;
    check_writable(op, what, *result);
    check_shape(op, what, result->shape, of.shape);
    check_result_dtype(op, what, result->dtype, of.dtype);
  };
  check("dhidden", g.dhidden, hidden);
  check("dweight", g.dweight, weight);
  if (g.loss) {
    check_writable(op, "loss", *g.loss);
    check_column(op, "loss", *g.loss, hidden);
  }
}

}  // namespace

void cross_entropy(View hidden, View weight, std::span<const std::int64_t> targets, MutableView loss,
                   const CrossEntropyOptions& options) {
  const char* op = "cross_entropy";
  check_arguments(op, hidden, weight, targets, options);
  check_writable(op, "loss", loss);
  check_column(op, "loss", loss, hidden);
  check_all_apart(op, {{"loss", loss}}, {{"hidden", hidden}, {"weight", weight}});
  if (hidden.dtype == DType::f64) return reference::cross_entropy(hidden, weight, targets, loss, options);
  clear_ignored(loss, targets, options);
  Chunks chunks(hidden, weight, targets, options);
  chunks.for_each([&](std::int64_t count) {
    for (std::int64_t n = 0; n < count; ++n) store_row_value(loss, chunks.row(n), chunks.loss(n));
  });
}

void cross_entropy_backward(View dloss, View hidden, View weight, std::span<const std::int64_t> targets,
                            const CrossEntropyGradients& gradients, const CrossEntropyOptions& options) {
  const char* op = "cross_entropy_backward";
  const auto& [dhidden, dweight, loss] = gradients;
  check_arguments(op, hidden, weight, targets, options);
  check_readable(op, "dloss", dloss);
  check_column(op, "dloss", dloss, hidden);
  check_gradients(op, gradients, hidden, weight);
  check_all_apart(op, {{"dhidden", dhidden}, {"dweight", dweight}, {"loss", loss}},
                  {{"dloss", dloss}, {"hidden", hidden}, {"weight", weight}});
  if (hidden.dtype == DType::f64)
    return reference::cross_entropy_backward(dloss, hidden, weight, targets, gradients, options);

  Chunks chunks(hidden, weight, targets, options);
  const std::int64_t V = chunks.vocabulary(), D = chunks.width();
  // f16 has too small a range for the gradients of logits: they stay f32 there.
  const DType dtype = hidden.dtype == DType::bf16 ? DType::bf16 : DType::f32;
  for (const auto& result : {dhidden, loss})
    if (result) clear_ignored(*result, targets, options);
  if (dweight && chunks.empty() && dweight->dim() > 0)
    for (std::int64_t r = 0; r < V; ++r) clear_row(*dweight, r);
  Tensor sums;  // of dweight, where that cannot hold them
  if (dweight && dweight->dtype != DType::f32) sums = Tensor(DType::f32, dweight->shape);
  const MutableView total = sums.empty() ? dweight.value_or(MutableView{}) : sums.view();
  const Buffer<char> part(dhidden ? chunks.most() * D * size_of(dhidden->dtype) : 0);
  bool first = true;
  chunks.for_each([&](std::int64_t count) {
    for (std::int64_t n = 0; loss && n < count; ++n) store_row_value(*loss, chunks.row(n), chunks.loss(n));
    const Matrix dlogits =
        chunks.gradients(count, dtype, [&](std::int64_t n) { return load_row_value(dloss, chunks.row(n)); });
    if (dhidden) {
      matmul(dlogits, chunks.weight(), std::nullopt, packed<void>(dhidden->dtype, part.data(), count, D));
      for_each_row(count, D, [&](std::int64_t n) {
        copy_row(dhidden->dtype, part.data() + n * D * size_of(dhidden->dtype), 1, row_data(*dhidden, chunks.row(n)),
                 dhidden->strides[3], D);
      });
    }
    if (dweight)
      matmul(transposed(dlogits), chunks.hidden_rows(count), std::nullopt,
             {DType::f32, total.data, V, D, total.strides[2], total.strides[3]}, !first);
    first = false;
  });
  if (!sums.empty() && !chunks.empty()) convert(sums, *dweight);
}

}  // namespace attend
