// What the tests of operations share: random tensors, odd layouts, bounds per element, central differences.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "attend/runtime.hpp"
#include "attend/tensor.hpp"
#include "base/elements.hpp"
#include "base/random.hpp"

namespace attend::test::ops {

// Calls f(b, h, i, d) for every element.
template <class F>
void for_each_element(const Shape& s, const F& f) {
  for (std::int64_t b = 0; b < s[0]; ++b) {
    for (std::int64_t h = 0; h < s[1]; ++h) {
      for (std::int64_t i = 0; i < s[2]; ++i) {
        for (std::int64_t d = 0; d < s[3]; ++d) f(b, h, i, d);
      }
    }
  }
}

inline void copy(const View& from, const MutableView& to) {
  for_each_element(from.shape, [&](auto b, auto h, auto i, auto d) { store(to, b, h, i, d, load(from, b, h, i, d)); });
}

// Standard normal values times `scale`.
inline Tensor random_tensor(DType dtype, const Shape& shape, std::uint64_t key, double scale = 1.0) {
  Tensor x(dtype, shape);
  for (std::int64_t n = 0; n < x.size(); ++n) {
    store_element(dtype, x.view().data, n, scale * normal(key, static_cast<std::uint64_t>(n)));
  }
  return x;
}

inline Tensor to_dtype(const View& x, DType dtype) {
  Tensor y(dtype, x.shape);
  copy(x, y);
  return y;
}

enum class MemoryLayout {
  packed,        // [batch, heads, length, dim] without gaps
  length_major,  // [batch, length, heads, dim]
  odd,           // every second element, gaps between rows and heads, rows backwards, one byte off alignment
};
inline constexpr MemoryLayout kMemoryLayouts[] = {MemoryLayout::packed, MemoryLayout::length_major, MemoryLayout::odd};
inline constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};

// Memory in a layout, with a guard of 0xA5 bytes around and between elements.
class Strided {
 public:
  Strided(DType dtype, const Shape& shape, MemoryLayout layout) : element_(static_cast<std::size_t>(size_of(dtype))) {
    Strides strides = layout == MemoryLayout::length_major ? length_major_strides(shape) : contiguous_strides(shape);
    std::int64_t first = 0, elements = shape[0] * shape[1] * shape[2] * shape[3];
    if (layout == MemoryLayout::odd) {
      const std::int64_t row = 2 * shape[3] + 3, head = row * shape[2] + 5, batch = head * shape[1] + 1;
      strides = {batch, head, -row, 2};
      first = row * (shape[2] - 1);
      elements = batch * shape[0];
    }
    const std::size_t offset = layout == MemoryLayout::odd ? 1 : 0;  // a misaligned pointer
    bytes_.assign(static_cast<std::size_t>(elements) * element_ + offset + 1, std::byte{0xA5});
    view = {dtype, bytes_.data() + offset + static_cast<std::size_t>(first < 0 ? 0 : first) * element_, shape, strides};
  }
  Strided(const View& values, MemoryLayout layout) : Strided(values.dtype, values.shape, layout) { copy(values, view); }

  // How many bytes lie outside the elements and are no longer as they were.
  std::int64_t damaged() const {
    std::vector<bool> inside(bytes_.size(), false);
    for_each_element(view.shape, [&](auto b, auto h, auto i, auto d) {
      const std::byte* at = static_cast<const std::byte*>(view.data) +
                            offset_of(view.strides, b, h, i, d) * static_cast<std::int64_t>(element_);
      for (std::size_t n = 0; n < element_; ++n) inside[static_cast<std::size_t>(at - bytes_.data()) + n] = true;
    });
    std::int64_t count = 0;
    for (std::size_t n = 0; n < bytes_.size(); ++n) count += !inside[n] && bytes_[n] != std::byte{0xA5};
    return count;
  }

  MutableView view;

 private:
  std::size_t element_;
  std::vector<std::byte> bytes_;
};

// Half a step of the dtype at 1 (the largest relative error of rounding once), and half its smallest step.
inline double unit_roundoff(DType dtype) {
  return dtype == DType::f64 ? 0x1p-53 : dtype == DType::f32 ? 0x1p-24 : dtype == DType::f16 ? 0x1p-11 : 0x1p-8;
}
inline double half_smallest(DType dtype) {
  return dtype == DType::f64 ? 0x1p-1074 : dtype == DType::f32 ? 0x1p-150 : dtype == DType::f16 ? 0x1p-25 : 0x1p-134;
}
// The largest error of rounding `value` once.
inline double rounding(DType dtype, double value) {
  return unit_roundoff(dtype) * std::abs(value) + half_smallest(dtype);
}

// Every element of `got` lies within bound(b, h, i, d) of `expected`; the worst one is named.
template <class F>
void expect_within(const View& got, const View& expected, const F& bound, const std::string& what) {
  ASSERT_EQ(got.shape, expected.shape) << what;
  double worst = 0;
  std::string text;
  for_each_element(got.shape, [&](auto b, auto h, auto i, auto d) {
    const double a = load(got, b, h, i, d), e = load(expected, b, h, i, d), allowed = bound(b, h, i, d);
    const double error = std::abs(a - e);
    if (error <= allowed) return;
    const double excess = std::isnan(error) ? HUGE_VAL : error / allowed;
    if (excess <= worst) return;
    worst = excess;
    std::ostringstream words;
    words << "[" << b << ", " << h << ", " << i << ", " << d << "] is " << a << ", expected " << e << ", error "
          << excess << " times the bound of " << allowed;
    text = words.str();
  });
  EXPECT_EQ(text, "") << what;
}

inline double max_abs(const View& x) {
  double max = 0;
  for_each_element(x.shape,
                   [&](auto b, auto h, auto i, auto d) { max = std::fmax(max, std::abs(load(x, b, h, i, d))); });
  return max;
}

inline double dot(const View& x, const View& y) {
  double sum = 0;
  for_each_element(x.shape, [&](auto b, auto h, auto i, auto d) { sum += load(x, b, h, i, d) * load(y, b, h, i, d); });
  return sum;
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         std::memcmp(a.view().data, b.view().data, static_cast<std::size_t>(a.bytes())) == 0;
}

// `gradient` is d loss() / d input, by central differences in double. `input` is f64, contiguous, and put back.
template <class F>
void expect_gradient(const View& gradient, Tensor& input, const F& loss, const std::string& what) {
  constexpr double kEps = 1e-6, kAbsolute = 1e-5, kRelative = 1e-3;
  ASSERT_EQ(gradient.shape, input.shape()) << what;
  double* x = input.data<double>();
  std::int64_t n = 0;
  for_each_element(gradient.shape, [&](auto b, auto h, auto i, auto d) {
    const double kept = x[n];
    x[n] = kept + kEps;
    const double above = loss();
    x[n] = kept - kEps;
    const double below = loss();
    x[n] = kept;
    const double numeric = (above - below) / (2 * kEps), analytic = load(gradient, b, h, i, d);
    EXPECT_LE(std::abs(analytic - numeric), kAbsolute + kRelative * std::abs(numeric))
        << what << ", element " << n << ": " << analytic << ", by differences " << numeric;
    ++n;
  });
}

// Calls make() (which returns a Tensor) with several thread counts: all results have the bits of the first.
template <class F>
void expect_same_for_any_threads(const F& make, const std::string& what) {
  const int before = threads();
  set_threads(1);
  const Tensor first = make();
  for (const int count : {2, 3, 7}) {
    set_threads(count);
    EXPECT_TRUE(same_bits(make(), first)) << what << " with " << count << " threads";
  }
  set_threads(before);
}

}  // namespace attend::test::ops
