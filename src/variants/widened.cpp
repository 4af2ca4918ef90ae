// Views of other dtypes as f32, and back.
#include "variants/widened.hpp"

#include <cstdint>

#include "base/elements.hpp"
#include "ops/rows.hpp"

namespace attend {
namespace {

template <class Void>
bool floats_in_place(const BasicView<Void>& x) {
  return x.dtype == DType::f32 && reinterpret_cast<std::uintptr_t>(x.data) % alignof(float) == 0;
}

// A dimension of one element takes no step, whatever its stride says: steps past the end must not overflow.
template <class Void>
BasicView<Void> without_idle_strides(BasicView<Void> x) {
  for (std::size_t d = 0; d < 4; ++d)
    if (x.shape[d] <= 1) x.strides[d] = 0;
  return x;
}

template <class Void>
float* head_of(const BasicView<Void>& x, std::int64_t b, std::int64_t h) {
  return static_cast<float*>(const_cast<void*>(static_cast<const void*>(x.data))) + b * x.strides[0] + h * x.strides[1];
}

// Rows of T from `from` to rows of U in `to`.
template <class T, class U>
void convert_rows(const View& from, const MutableView& to) {
  const std::int64_t D = from.dim();
  for_each_row(row_count(from.shape), D, [&](std::int64_t r) {
    const Row<T> x = row_of<T>(from, r);
    const MutableRow<U> y = row_of<U>(to, r);
    for (std::int64_t d = 0; d < D; ++d) y.set(d, x[d]);
  });
}

}  // namespace

WidenedInput::WidenedInput(const View& x) : view_(without_idle_strides(x)) {
  if (floats_in_place(x)) return;
  storage_ = Tensor(DType::f32, x.shape);
  visit_f32_family(x.dtype, [&](auto element) { convert_rows<decltype(element), float>(x, storage_); });
  view_ = View(storage_.view());
}

FloatMatrix WidenedInput::matrix(std::int64_t b, std::int64_t h) const {
  return {head_of(view_, b, h), view_.length(), view_.dim(), view_.strides[2], view_.strides[3]};
}

const float* WidenedInput::row(std::int64_t b, std::int64_t h, std::int64_t i) const {
  return head_of(view_, b, h) + i * view_.strides[2];
}

WidenedResult::WidenedResult(const MutableView& y) : target_(y), view_(without_idle_strides(y)) {
  if (floats_in_place(y)) return;
  storage_ = Tensor(DType::f32, y.shape);
  view_ = storage_.view();
}

FloatMatrix WidenedResult::matrix(std::int64_t b, std::int64_t h) const {
  return {head_of(view_, b, h), view_.length(), view_.dim(), view_.strides[2], view_.strides[3]};
}

void WidenedResult::store() const {
  if (storage_.empty()) return;
  visit_f32_family(target_.dtype, [&](auto element) { convert_rows<float, decltype(element)>(storage_, target_); });
}

void fill_zero(const MutableView& y) {
  const std::int64_t bytes = size_of(y.dtype);
  for_each_row(row_count(y.shape), y.dim(), [&](std::int64_t r) {
    char* row = static_cast<char*>(y.data) + row_start(y.shape, y.strides, r) * bytes;
    const std::int64_t step = step_of(y.shape, y.strides, bytes);
    for (std::int64_t d = 0; d < y.dim(); ++d) std::memset(row + d * step, 0, static_cast<std::size_t>(bytes));
  });
}

}  // namespace attend
