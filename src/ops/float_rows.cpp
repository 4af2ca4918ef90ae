// Rows of views as the row kernels want them.
#include "ops/float_rows.hpp"

#include "base/elements.hpp"

namespace attend {

FloatVector::FloatVector(const std::optional<View>& x) {
  if (!x) return;
  if (x->dtype != DType::f64 && FloatRows(*x).in_place()) {
    data_ = static_cast<const float*>(x->data);
    return;
  }
  copy_.resize(static_cast<std::size_t>(x->dim()));
  for (std::int64_t j = 0; j < x->dim(); ++j)
    copy_[static_cast<std::size_t>(j)] = static_cast<float>(load(*x, 0, 0, 0, j));
  data_ = copy_.data();
}

RowBuffers::RowBuffers(std::int64_t count, std::int64_t cols)
    : cols_(checked_product("columns", {divide_up(cols, 16), 16})),
      scratch_(checked_product("rows", {count, cols_, std::int64_t{sizeof(float)}})) {}

bool is_contiguous(const View& x) {
  if (row_count(x.shape) == 0) return true;  // its sizes may be too large to be multiplied
  std::int64_t step = 1;
  for (const std::size_t d : {3U, 2U, 1U, 0U}) {
    if (x.shape[d] == 1) continue;
    if (x.strides[d] != step) return false;
    step *= x.shape[d];
  }
  return true;
}

}  // namespace attend
