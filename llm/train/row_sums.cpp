// Loops over rows of floats, doubles or bf16; a row's sum depends on that row alone.
#include "llm/train/row_sums.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "attend/threads.hpp"
#include "base/half.hpp"

namespace attend::llm {
namespace {

constexpr std::int64_t kRows = 16;  // of an item

template <class F>
void for_rows(std::int64_t count, const F& f) {
  parallel_for((count + kRows - 1) / kRows, [&](std::int64_t item, int) {
    for (std::int64_t n = item * kRows; n < std::min(count, (item + 1) * kRows); ++n) f(n);
  });
}

float widened(float x) {
  return x;
}
double widened(double x) {
  return x;
}
float widened(BFloat16 x) {
  return bf16_to_float(x.bits);
}
void put(float& to, float x) {
  to = x;
}
void put(double& to, double x) {
  to = x;
}
void put(BFloat16& to, float x) {
  to = {float_to_bf16(x)};
}

template <class T>
using Sum = decltype(widened(T{}));

// f(T{}) for the type that a dtype names.
template <class F>
void with_type(DType dtype, const F& f) {
  if (dtype == DType::f64)
    f(double{});
  else if (dtype == DType::f32)
    f(float{});
  else
    f(BFloat16{});
}

template <class T, class Void>
auto row_of(const BasicView<Void>& x, std::int64_t n) {
  using Element = std::conditional_t<std::is_const_v<Void>, const T, T>;
  return static_cast<Element*>(x.data) + n * x.strides[2];
}

template <class T>
double dot(const T* x, const T* y, std::int64_t count) {
  double lanes[8] = {};
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    for (std::int64_t k = 0; k < 8; ++k)
      lanes[k] += static_cast<double>(widened(x[i + k])) * static_cast<double>(widened(y[i + k]));
  for (; i < count; ++i) lanes[i % 8] += static_cast<double>(widened(x[i])) * static_cast<double>(widened(y[i]));
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

}  // namespace

void gather_rows(const View& from, const std::int32_t* tokens, const MutableView& to) {
  const std::int64_t size = size_of(from.dtype);
  for_rows(to.length(), [&](std::int64_t n) {
    std::memcpy(static_cast<char*>(to.data) + n * to.strides[2] * size,
                static_cast<const char*>(from.data) + tokens[n] * from.strides[2] * size,
                static_cast<std::size_t>(to.dim() * size));
  });
}

void scatter_rows(const View& from, const std::int32_t* tokens, const MutableView& to) {
  const std::int64_t size = size_of(from.dtype);
  for_rows(from.length(), [&](std::int64_t n) {
    std::memcpy(static_cast<char*>(to.data) + tokens[n] * to.strides[2] * size,
                static_cast<const char*>(from.data) + n * from.strides[2] * size,
                static_cast<std::size_t>(to.dim() * size));
  });
}

void add_rows_at(const View& rows, const std::int32_t* tokens, const View* weights, const MutableView& sums) {
  with_type(rows.dtype, [&](auto zero) {
    using T = decltype(zero);
    for_rows(rows.length(), [&](std::int64_t n) {
      const T* x = row_of<T>(rows, n);
      Sum<T>* y = row_of<Sum<T>>(sums, tokens == nullptr ? n : tokens[n]);
      const Sum<T> weight = weights == nullptr ? Sum<T>{1} : *row_of<Sum<T>>(*weights, n);
      for (std::int64_t i = 0; i < rows.dim(); ++i) y[i] += weight * widened(x[i]);
    });
  });
}

void weigh_rows(const MutableView& active, const MutableView& dactive, const MutableView& weights) {
  with_type(active.dtype, [&](auto zero) {
    using T = decltype(zero);
    for_rows(active.length(), [&](std::int64_t n) {
      T *x = row_of<T>(active, n), *dx = row_of<T>(dactive, n);
      Sum<T>& weight = *row_of<Sum<T>>(weights, n);
      const Sum<T> was = weight;
      weight = static_cast<Sum<T>>(dot(x, dx, active.dim()));
      for (std::int64_t i = 0; i < active.dim(); ++i) {
        put(x[i], was * widened(x[i]));
        put(dx[i], was * widened(dx[i]));
      }
    });
  });
}

}  // namespace attend::llm
