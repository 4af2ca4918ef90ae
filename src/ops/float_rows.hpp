// Rows of views as the row kernels want them: floats side by side, where they lie if they do so, else converted.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

#include "attend/tensor.hpp"
#include "base/checked.hpp"
#include "base/threads.hpp"
#include "cpu/dispatch.hpp"
#include "ops/rows.hpp"
#include "ops/scratch.hpp"

namespace attend {

// Heads that lie side by side are walked before the positions: memory is then read in order. All views have one shape.
// True where [batch, heads, length] has become [batch, length, heads].
template <class First, class... Views>
bool walk_in_order(First& first, Views&... others) {
  const bool both = first.shape[1] > 1 && first.shape[2] > 1;
  if (!both || std::abs(first.strides[1]) >= std::abs(first.strides[2])) return false;
  const auto swapped = [](auto& view) {
    std::swap(view.shape[1], view.shape[2]);
    std::swap(view.strides[1], view.strides[2]);
  };
  (swapped(first), ..., swapped(others));
  return true;
}

// The rows of a view that is not f64.
template <class Void>
class RowsOf {
 public:
  explicit RowsOf(const BasicView<Void>& x)
      : kernels_(kernels().rows),
        x_(x),
        bytes_(size_of(x.dtype)),
        stride_(x.shape[3] > 1 ? x.strides[3] : 1),
        in_place_(x.dtype == DType::f32 && stride_ == 1 &&
                  reinterpret_cast<std::uintptr_t>(x.data) % alignof(float) == 0) {}

  bool in_place() const { return in_place_; }
  // Halves side by side, for kernels that read them where they lie, as of at().
  bool bf16_in_place() const {
    return x_.dtype == DType::bf16 && stride_ == 1 && reinterpret_cast<std::uintptr_t>(x_.data) % 2 == 0;
  }
  // Rows of one (batch, head) follow one another without gaps.
  bool no_gaps() const { return stride_ == 1 && (x_.shape[2] == 1 || x_.strides[2] == x_.shape[3]); }

  // Elements [first, first + count) of row r, copied to `buffer` unless they lie as they should.
  const float* read(std::int64_t r, std::int64_t first, std::int64_t count, float* buffer) const {
    if (in_place_) return static_cast<const float*>(at(r, first));
    kernels_.load(x_.dtype, at(r, first), stride_, count, buffer);
    return buffer;
  }
  // Where these elements are to be written, `buffer` if not in their place: then written() puts them there.
  float* place(std::int64_t r, std::int64_t first, float* buffer) const {
    return in_place_ ? static_cast<float*>(at(r, first)) : buffer;
  }
  void written(std::int64_t r, std::int64_t first, std::int64_t count, const float* buffer) const {
    if (!in_place_) kernels_.store(x_.dtype, at(r, first), stride_, count, buffer);
  }
  Void* at(std::int64_t r, std::int64_t first) const {
    return static_cast<Byte*>(x_.data) + (row_start(x_.shape, x_.strides, r) + first * stride_) * bytes_;
  }

 private:
  using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;

  const RowKernels& kernels_;
  BasicView<Void> x_;
  std::int64_t bytes_, stride_;
  bool in_place_;
};
using FloatRows = RowsOf<const void>;
using MutableFloatRows = RowsOf<void>;

// One row that every row of a call needs, such as a weight, of any dtype. Null for none.
class FloatVector {
 public:
  explicit FloatVector(const std::optional<View>& x);
  const float* data() const { return data_; }

 private:
  std::vector<float> copy_;
  const float* data_ = nullptr;
};

// Memory for `count` rows of `cols` floats for each worker.
class RowBuffers {
 public:
  RowBuffers(std::int64_t count, std::int64_t cols);
  int workers() const { return scratch_.workers(); }
  float* of(int worker, std::int64_t n) const { return static_cast<float*>(scratch_.of(worker)) + n * cols_; }

 private:
  std::int64_t cols_;
  Scratch scratch_;
};

// Calls f(row, count) for rows [first, end) of views of this shape: as many at once as a kernel takes, if those of a
// (batch, head) follow one another.
template <class F>
void for_rows_together(const Shape& shape, bool no_gaps, std::int64_t first, std::int64_t end, const F& f) {
  while (first < end) {
    const std::int64_t in_head = shape[2] - first % shape[2];
    const std::int64_t count = no_gaps ? std::min({kRowsTogether, in_head, end - first}) : 1;
    f(first, count);
    first += count;
  }
}

// ---- Elementwise operations ----

inline constexpr std::int64_t kPiece = 1024;  // elements a kernel is given at once

// One row of everything, if all views lie without gaps in the order of their shape.
bool is_contiguous(const View& x);
template <class... Views>
void flatten(Views&... views) {
  if (!(is_contiguous(views) && ...)) return;
  const auto flat = [](auto& view) {
    view.shape = {1, 1, 1, row_count(view.shape) * view.shape[3]};
    view.strides = contiguous_strides(view.shape);
  };
  (flat(views), ...);
}

// Calls f(row, first, count) for pieces of at most kPiece elements, over the threads, `at_once` elements an item: as
// many as are worth the start of a thread.
template <class F>
void for_each_piece(const Shape& shape, std::int64_t at_once, const F& f) {
  const std::int64_t cols = shape[3], per_row = divide_up(cols, kPiece), pieces = row_count(shape) * per_row;
  const std::int64_t together = std::max<std::int64_t>(1, at_once / std::max<std::int64_t>(1, std::min(cols, kPiece)));
  parallel_for(divide_up(pieces, together), [&](std::int64_t item, int) {
    const std::int64_t end = std::min(pieces, (item + 1) * together);
    for (std::int64_t piece = item * together; piece < end; ++piece) {
      const std::int64_t first = piece % per_row * kPiece;
      f(piece / per_row, first, std::min(kPiece, cols - first));
    }
  });
}

}  // namespace attend
