// Rows of views for the operations that work row by row: typed access, chunks over the threads, sums across rows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "attend/tensor.hpp"
#include "base/checked.hpp"
#include "base/export.hpp"
#include "base/half.hpp"
#include "base/sum_terms.hpp"
#include "base/threads.hpp"

namespace attend {

inline float widen(float x) {
  return x;
}
inline float widen(Float16 x) {
  return f16_to_float(x.bits);
}
inline float widen(BFloat16 x) {
  return bf16_to_float(x.bits);
}
template <class T>
T narrow(float x) {
  if constexpr (std::is_same_v<T, Float16>) {
    return {float_to_f16(x)};
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return {float_to_bf16(x)};
  } else {
    return x;
  }
}

// Calls f with a value of the element type. f64 is not among them: it is computed by the reference.
template <class F>
void visit_f32_family(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32:
      return f(float{});
    case DType::f16:
      return f(Float16{});
    case DType::bf16:
      return f(BFloat16{});
    case DType::f64:
      break;
  }
}

// One row, read and written as float. Elements are copied, not cast: a view may be misaligned.
template <class T>
struct Row {
  const char* data;
  std::int64_t step;  // in bytes

  float operator[](std::int64_t j) const {
    T x;
    std::memcpy(&x, data + j * step, sizeof(T));
    return widen(x);
  }
};
template <class T>
struct MutableRow {
  char* data;
  std::int64_t step;

  void set(std::int64_t j, float value) const {
    const T x = narrow<T>(value);
    std::memcpy(data + j * step, &x, sizeof(T));
  }
};

// How many rows [batch, heads, length] has; none when there is nothing in them.
inline std::int64_t row_count(const Shape& shape) {
  const bool nothing = std::find(shape.begin(), shape.end(), 0) != shape.end();
  return nothing ? 0 : shape[0] * shape[1] * shape[2];
}

// Where row r starts, in elements, counting rows in the order [batch, heads, length].
inline std::int64_t row_start(const Shape& shape, const Strides& strides, std::int64_t r) {
  const std::int64_t i = r % shape[2], bh = r / shape[2];
  return bh / shape[1] * strides[0] + bh % shape[1] * strides[1] + i * strides[2];
}

// The step from one element of a row to the next, in bytes. A row of one element takes none, whatever its stride says.
inline std::int64_t step_of(const Shape& shape, const Strides& strides, std::int64_t bytes) {
  return shape[3] > 1 ? strides[3] * bytes : 0;
}

template <class T>
Row<T> row_of(const View& x, std::int64_t r) {
  constexpr std::int64_t kBytes = sizeof(T);
  return {static_cast<const char*>(x.data) + row_start(x.shape, x.strides, r) * kBytes,
          step_of(x.shape, x.strides, kBytes)};
}
template <class T>
MutableRow<T> row_of(const MutableView& x, std::int64_t r) {
  constexpr std::int64_t kBytes = sizeof(T);
  return {static_cast<char*>(x.data) + row_start(x.shape, x.strides, r) * kBytes, step_of(x.shape, x.strides, kBytes)};
}

// Calls f(first, end, worker) for all rows, over at most `workers` threads, in chunks worth handing out.
template <class F>
void for_each_chunk(std::int64_t rows, std::int64_t cols, int workers, const F& f) {
  constexpr std::int64_t kChunkElements = 4096;
  const std::int64_t chunk = std::max<std::int64_t>(1, kChunkElements / std::max<std::int64_t>(1, cols));
  parallel_for(divide_up(rows, chunk), workers,
               [&](std::int64_t item, int worker) { f(item * chunk, std::min(rows, (item + 1) * chunk), worker); });
}
// Calls f(row, worker) for every row.
template <class F>
void for_each_row(std::int64_t rows, std::int64_t cols, int workers, const F& f) {
  for_each_chunk(rows, cols, workers, [&](std::int64_t first, std::int64_t end, int worker) {
    for (std::int64_t r = first; r < end; ++r) f(r, worker);
  });
}
// The same with f(row).
template <class F>
void for_each_row(std::int64_t rows, std::int64_t cols, const F& f) {
  for_each_row(rows, cols, thread_count(), [&](std::int64_t r, int) { f(r); });
}

// Sums over rows, one per column: add_rows(first, end, sums, worker) adds these rows to sums[cols]. Blocks of rows are
// cut by cols alone and merged in order, so the bits do not depend on the threads.
template <class F>
std::vector<double> sum_blocks(std::int64_t rows, std::int64_t cols, int workers, const F& add_rows) {
  // At least 32 rows a block, so that the partial sums stay small beside the rows.
  const std::int64_t block = std::max<std::int64_t>(32, 4096 / std::max<std::int64_t>(1, cols));
  const std::int64_t blocks = std::max<std::int64_t>(1, divide_up(rows, block));
  std::vector<double> sums(static_cast<std::size_t>(blocks * cols));
  parallel_for(blocks, workers, [&](std::int64_t item, int worker) {
    add_rows(item * block, std::min(rows, (item + 1) * block), sums.data() + item * cols, worker);
  });
  for (std::int64_t item = 1; item < blocks; ++item) {
    for (std::int64_t j = 0; j < cols; ++j) {
      sums[static_cast<std::size_t>(j)] += sums[static_cast<std::size_t>(item * cols + j)];
    }
  }
  sums.resize(static_cast<std::size_t>(cols));
  return sums;
}
// The same with add_row(r, sums, worker).
template <class F>
std::vector<double> sum_rows(std::int64_t rows, std::int64_t cols, int workers, const F& add_row) {
  return sum_blocks(rows, cols, workers, [&](std::int64_t first, std::int64_t end, double* sums, int worker) {
    for (std::int64_t r = first; r < end; ++r) add_row(r, sums, worker);
  });
}

// Copies between views of one shape and dtype that do not overlap.
ATTEND_FOR_RING void copy_rows(const View& from, const MutableView& to);

}  // namespace attend
