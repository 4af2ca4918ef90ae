// Rows of a table by their number, and the gradient of the table.
#include "attend/embedding.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "base/checked.hpp"
#include "ops/float_rows.hpp"
#include "reference/embedding.hpp"

namespace attend {
namespace {

void check_tokens(const char* op, std::span<const std::int64_t> tokens, std::int64_t rows, const char* rows_of,
                  std::int64_t table_rows) {
  check_equal(op, "number of tokens", std::ssize(tokens), rows, rows_of);
  for (std::size_t n = 0; n < tokens.size(); ++n) {
    if (tokens[n] >= 0 && tokens[n] < table_rows) continue;
    fail(op, "token " + std::to_string(n) + " is " + std::to_string(tokens[n]) + ", expected 0 to " +
                 std::to_string(table_rows - 1) + " (the table has " + std::to_string(table_rows) + " rows)");
  }
}

std::int64_t rows_of(const View& x) {
  return checked_product("rows", {x.batch(), x.heads(), x.length()});
}

// A row that is written from floats.
void put_row(const MutableFloatRows& to, std::int64_t r, std::int64_t n, const float* from) {
  float buffer[kPiece];
  for (std::int64_t first = 0; first < n; first += kPiece) {
    const std::int64_t count = std::min(kPiece, n - first);
    float* place = to.place(r, first, buffer);
    std::copy_n(from + first, count, place);
    to.written(r, first, count, place);
  }
}

}  // namespace

void embedding(View table, std::span<const std::int64_t> tokens, MutableView y) {
  const char* op = "embedding";
  check_readable(op, "table", table);
  check_shape(op, "table", table.shape, {1, 1, table.length(), table.dim()});
  check_writable(op, "y", y);
  check_shape(op, "y", y.shape, {y.batch(), y.heads(), y.length(), table.dim()});
  check_result_dtype(op, "y", y.dtype, table.dtype);
  check_all_apart(op, {{"y", y}}, {{"table", table}});
  check_tokens(op, tokens, rows_of(y), "rows of y", table.length());
  if (row_count(y.shape) == 0) return;  // its dim may be larger than any memory
  if (table.dtype == DType::f64) return reference::embedding(table, tokens, y);
  const std::int64_t D = table.dim();
  const FloatRows from(table);
  const MutableFloatRows to(y);
  const RowBuffers buffers(1, D);
  for_each_row(row_count(y.shape), D, buffers.workers(), [&](std::int64_t r, int worker) {
    put_row(to, r, D, from.read(tokens[static_cast<std::size_t>(r)], 0, D, buffers.of(worker, 0)));
  });
}

void embedding(const Weight& table, std::span<const std::int64_t> tokens, MutableView y) {
  const char* op = "embedding";
  check_writable(op, "y", y);
  check_shape(op, "y", y.shape, {y.batch(), y.heads(), y.length(), table.in()});
  check_dtype(op, "y", y.dtype, DType::f32);
  check_tokens(op, tokens, rows_of(y), "rows of y", table.out());
  const std::int64_t D = table.in();
  const MutableFloatRows to(y);
  const RowBuffers buffers(1, D);
  for_each_row(row_count(y.shape), D, buffers.workers(), [&](std::int64_t r, int worker) {
    float* place = to.place(r, 0, buffers.of(worker, 0));
    table.row(tokens[static_cast<std::size_t>(r)], place);
    to.written(r, 0, D, place);
  });
}

void embedding_backward(View dy, std::span<const std::int64_t> tokens, MutableView dtable) {
  const char* op = "embedding_backward";
  check_readable(op, "dy", dy);
  check_writable(op, "dtable", dtable);
  check_shape(op, "dtable", dtable.shape, {1, 1, dtable.length(), dy.dim()});
  check_result_dtype(op, "dtable", dtable.dtype, dy.dtype);
  check_all_apart(op, {{"dtable", dtable}}, {{"dy", dy}});
  check_tokens(op, tokens, rows_of(dy), "rows of dy", dtable.length());
  if (row_count(dtable.shape) == 0) return;
  if (dy.dtype == DType::f64) return reference::embedding_backward(dy, tokens, dtable);
  const std::int64_t D = dy.dim(), V = D == 0 ? 0 : dtable.length();

  // The rows of each token one after the other, in their order: those of token t are order[begin[t]] up to
  // order[begin[t + 1]].
  std::vector<std::int64_t> begin(static_cast<std::size_t>(V) + 1), order(tokens.size());
  for (const std::int64_t token : tokens) ++begin[static_cast<std::size_t>(V == 0 ? 0 : token + 1)];
  for (std::size_t t = 1; t < begin.size(); ++t) begin[t] += begin[t - 1];
  std::vector<std::int64_t> next(begin.begin(), begin.end());
  for (std::size_t n = 0; n < tokens.size() && V > 0; ++n)
    order[static_cast<std::size_t>(next[static_cast<std::size_t>(tokens[n])]++)] = static_cast<std::int64_t>(n);

  const FloatRows from(dy);
  const MutableFloatRows to(dtable);
  const RowBuffers buffers(4, D);  // a row as floats, and the sums in double before they are floats
  for_each_row(V, D, buffers.workers(), [&](std::int64_t t, int worker) {
    float *buffer = buffers.of(worker, 0), *result = buffers.of(worker, 1);
    auto* sums = reinterpret_cast<double*>(buffers.of(worker, 2));
    std::fill_n(sums, D, 0.0);
    for (std::int64_t k = begin[static_cast<std::size_t>(t)]; k < begin[static_cast<std::size_t>(t) + 1]; ++k)
      kernels().rows.accumulate(from.read(order[static_cast<std::size_t>(k)], 0, D, buffer), D, sums);
    for (std::int64_t d = 0; d < D; ++d) result[d] = static_cast<float>(sums[d]);
    put_row(to, t, D, result);
  });
}

}  // namespace attend
