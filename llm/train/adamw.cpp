// AdamW over flat arrays. Chunks are cut by the parameters alone: the same bits for any number of threads.
#include "llm/train/adamw.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "base/threads.hpp"

namespace attend::llm {
namespace {

constexpr std::int64_t kChunk = 16384;

// Calls f(chunk, first, count, parameter) for pieces of the parameters, over the threads.
template <class F>
void for_chunks(const ParameterLayout& layout, const F& f) {
  struct Piece {
    std::int64_t first, count;
    const Parameter* parameter;
  };
  std::vector<Piece> pieces;
  for (const Parameter& p : layout.all())
    for (std::int64_t i = 0; i < p.count(); i += kChunk)
      pieces.push_back({p.offset + i, std::min(kChunk, p.count() - i), &p});
  parallel_for(std::ssize(pieces), [&](std::int64_t n, int) {
    const Piece& piece = pieces[static_cast<std::size_t>(n)];
    f(n, piece.first, piece.count, *piece.parameter);
  });
}

std::int64_t chunk_count(const ParameterLayout& layout) {
  std::int64_t count = 0;
  for (const Parameter& p : layout.all()) count += (p.count() + kChunk - 1) / kChunk;
  return count;
}

template <class T>
struct Factors {
  T beta1, beta2, eps, scale, keep, step, correction;
};

// Vectorised by the compiler (llm/CMakeLists.txt), with the bits that one at a time would have.
template <class T>
void update(const T* __restrict g, std::int64_t n, const Factors<T> f, T* __restrict m, T* __restrict v,
            T* __restrict p) {
  for (std::int64_t i = 0; i < n; ++i) {
    const T gradient = g[i] * f.scale;
    m[i] = f.beta1 * m[i] + (1 - f.beta1) * gradient;
    v[i] = f.beta2 * v[i] + (1 - f.beta2) * gradient * gradient;
    p[i] = p[i] * f.keep - f.step * m[i] / (std::sqrt(v[i]) * f.correction + f.eps);
  }
}

template <class T>
double squares(const T* g, std::int64_t n) {
  double lanes[8] = {};
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (std::int64_t k = 0; k < 8; ++k) lanes[k] += static_cast<double>(g[i + k]) * static_cast<double>(g[i + k]);
  for (; i < n; ++i) lanes[i % 8] += static_cast<double>(g[i]) * static_cast<double>(g[i]);
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

template <class T>
void step_of(const ParameterLayout& layout, const AdamW& o, double rate, std::int64_t step, View gradients,
             double factor, Moments& moments, MutableView parameters) {
  const auto t = static_cast<double>(step);
  const double first = 1 - std::pow(o.beta1, t), second = 1 - std::pow(o.beta2, t);
  Factors<T> f{static_cast<T>(o.beta1),
               static_cast<T>(o.beta2),
               static_cast<T>(o.eps),
               static_cast<T>(factor),
               T{1},
               static_cast<T>(rate / first),
               static_cast<T>(1 / std::sqrt(second))};
  const T* g = static_cast<const T*>(gradients.data);
  T *m = moments.first.data<T>(), *v = moments.second.data<T>(), *p = static_cast<T*>(parameters.data);
  for_chunks(layout, [&](std::int64_t, std::int64_t at, std::int64_t count, const Parameter& parameter) {
    Factors<T> own = f;
    if (parameter.matrix) own.keep = static_cast<T>(1 - rate * o.decay);
    update(g + at, count, own, m + at, v + at, p + at);
  });
}

}  // namespace

double gradient_norm(const ParameterLayout& layout, View gradients) {
  std::vector<double> sums(static_cast<std::size_t>(chunk_count(layout)));
  for_chunks(layout, [&](std::int64_t n, std::int64_t at, std::int64_t count, const Parameter&) {
    sums[static_cast<std::size_t>(n)] = gradients.dtype == DType::f64
                                            ? squares(static_cast<const double*>(gradients.data) + at, count)
                                            : squares(static_cast<const float*>(gradients.data) + at, count);
  });
  double sum = 0;
  for (const double part : sums) sum += part;
  return std::sqrt(sum);
}

void adamw_step(const ParameterLayout& layout, const AdamW& options, double rate, std::int64_t step, View gradients,
                double factor, Moments& moments, MutableView parameters) {
  if (parameters.dtype == DType::f64)
    step_of<double>(layout, options, rate, step, gradients, factor, moments, parameters);
  else
    step_of<float>(layout, options, rate, step, gradients, factor, moments, parameters);
}

double Schedule::at(std::int64_t step) const {
  if (step <= warm_up)
    return rate * static_cast<double>(step) / static_cast<double>(std::max<std::int64_t>(1, warm_up));
  const double done =
      static_cast<double>(step - warm_up) / static_cast<double>(std::max<std::int64_t>(1, steps - warm_up));
  return rate * (last + (1 - last) * 0.5 * (1 + std::cos(std::numbers::pi * std::min(1.0, done))));
}

}  // namespace attend::llm
