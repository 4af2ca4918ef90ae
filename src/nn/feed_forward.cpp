// The elementwise parts of a transformer block: activations in chunks that fit the first cache, sums of rows.
#include "nn/feed_forward.hpp"

#include <algorithm>
#include <cmath>

#include "cpu/dispatch.hpp"
#include "ops/rows.hpp"

namespace attend {
namespace {

constexpr std::int64_t kChunk = 512;
constexpr float kLog2e = 1.4426950408889634F;

// 1 / (1 + e^-x)
void sigmoids(const float* x, std::int64_t n, float* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = -kLog2e * x[i];
  kernels().exp2(y, y, n);
  for (std::int64_t i = 0; i < n; ++i) y[i] = 1.0F / (1.0F + y[i]);
}

float normal_below(float x) {
  return 0.5F * std::erfc(x * -0.70710678118654752F);  // erfc keeps its digits where the result is small
}
float normal_density(float x) {
  return 0.39894228040143268F * std::exp(-0.5F * x * x);
}

template <class T>
void widen_all(const T* x, std::int64_t n, float* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = widen(x[i]);
}
template <class T>
void narrow_all(const float* x, std::int64_t n, T* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = narrow<T>(x[i]);
}

// Calls f(first, count) for chunks of n elements, over the threads.
template <class F>
void for_chunks(std::int64_t n, const F& f) {
  parallel_for((n + kChunk - 1) / kChunk,
               [&](std::int64_t item, int) { f(item * kChunk, std::min(kChunk, n - item * kChunk)); });
}

// Calls f with rows of x and y as typed rows; `to` may be of another type.
template <class F>
void for_typed_rows(const View& x, const MutableView& to, const F& f) {
  visit_f32_family(x.dtype, [&](auto from_element) {
    visit_f32_family(to.dtype, [&](auto to_element) {
      for_each_row(row_count(x.shape), x.dim(), [&](std::int64_t r) { f(from_element, to_element, r); });
    });
  });
}

}  // namespace

void activate(FeedForward kind, const Tensor& gate, const Tensor& up, Tensor& hidden) {
  visit_f32_family(up.dtype(), [&](auto element) {
    using T = decltype(element);
    for_chunks(up.size(), [&](std::int64_t first, std::int64_t n) {
      float x[kChunk], g[kChunk], s[kChunk];
      widen_all(up.data<T>() + first, n, x);
      if (kind == FeedForward::swiglu) {
        widen_all(gate.data<T>() + first, n, g);
        sigmoids(g, n, s);
        for (std::int64_t i = 0; i < n; ++i) x[i] *= g[i] * s[i];
      } else if (kind == FeedForward::gelu) {
        for (std::int64_t i = 0; i < n; ++i) x[i] *= normal_below(x[i]);
      } else {
        for (std::int64_t i = 0; i < n; ++i) x[i] = x[i] < 0 ? 0 : x[i];  // a NaN stays
      }
      narrow_all(x, n, hidden.data<T>() + first);
    });
  });
}

void activate_backward(FeedForward kind, const Tensor& gate, const Tensor& up, Tensor& dhidden, Tensor& dgate) {
  visit_f32_family(up.dtype(), [&](auto element) {
    using T = decltype(element);
    for_chunks(up.size(), [&](std::int64_t first, std::int64_t n) {
      float x[kChunk], g[kChunk], s[kChunk], dh[kChunk];
      widen_all(up.data<T>() + first, n, x);
      widen_all(dhidden.data<T>() + first, n, dh);
      if (kind == FeedForward::swiglu) {
        widen_all(gate.data<T>() + first, n, g);
        sigmoids(g, n, s);
        for (std::int64_t i = 0; i < n; ++i) {
          x[i] *= dh[i] * (s[i] * (1.0F + g[i] * (1.0F - s[i])));
          dh[i] *= g[i] * s[i];
        }
        narrow_all(x, n, dgate.data<T>() + first);
      } else if (kind == FeedForward::gelu) {
        for (std::int64_t i = 0; i < n; ++i) dh[i] *= normal_below(x[i]) + x[i] * normal_density(x[i]);
      } else {
        for (std::int64_t i = 0; i < n; ++i) dh[i] = x[i] > 0 ? dh[i] : 0;
      }
      narrow_all(dh, n, dhidden.data<T>() + first);
    });
  });
}

void add_rows(const View& x, const View& y, const MutableView& z) {
  for_typed_rows(x, z, [&](auto from, auto to, std::int64_t r) {
    const auto a = row_of<decltype(from)>(x, r), b = row_of<decltype(from)>(y, r);
    const auto c = row_of<decltype(to)>(z, r);
    for (std::int64_t d = 0; d < x.dim(); ++d) c.set(d, a[d] + b[d]);
  });
}

void accumulate(const View& x, const MutableView& sum) {
  for_typed_rows(x, sum, [&](auto from, auto, std::int64_t r) {
    const auto a = row_of<decltype(from)>(x, r);
    const auto before = row_of<float>(View(sum), r);
    const auto c = row_of<float>(sum, r);
    for (std::int64_t d = 0; d < x.dim(); ++d) c.set(d, before[d] + a[d]);
  });
}

Tensor rounded(const View& x, DType dtype) {
  Tensor y(dtype, x.shape);
  for_typed_rows(x, y, [&](auto from, auto to, std::int64_t r) {
    const auto a = row_of<decltype(from)>(x, r);
    const auto b = row_of<decltype(to)>(y.view(), r);
    for (std::int64_t d = 0; d < x.dim(); ++d) b.set(d, a[d]);
  });
  return y;
}

}  // namespace attend
