// Row by row: norms, rotations, activations.
#include "llm/model/rows.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "attend/positions.hpp"
#include "attend/threads.hpp"
#include "base/half.hpp"

namespace attend::llm {
namespace {

// f(first, last) over [0, count), in pieces worth handing out.
template <class F>
void in_pieces(std::int64_t count, std::int64_t piece, const F& f) {
  if (count <= piece) return f(std::int64_t{0}, count);
  parallel_for((count + piece - 1) / piece,
               [&](std::int64_t n, int) { f(n * piece, std::min(count, (n + 1) * piece)); });
}

constexpr std::int64_t kPiece = 4096;  // numbers

}  // namespace

void Rotation::fill(const RopeTurns& turns, RopeStyle wanted, std::span<const std::int64_t> positions) {
  style = wanted;
  pairs = std::ssize(turns.per_position);
  cosines.resize(positions.size() * turns.per_position.size());
  sines.resize(cosines.size());
  in_pieces(std::ssize(positions), 16, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t t = first; t < last; ++t)
      for (std::int64_t i = 0; i < pairs; ++i) {
        const auto position = static_cast<double>(positions[static_cast<std::size_t>(t)]);
        const double angle = position * turns.per_position[static_cast<std::size_t>(i)];
        const auto at = static_cast<std::size_t>(t * pairs + i);
        cosines[at] = static_cast<float>(std::cos(angle) * turns.magnitude);
        sines[at] = static_cast<float>(std::sin(angle) * turns.magnitude);
      }
  });
}

void rotate(float* x, std::int64_t rows, std::int64_t heads, std::int64_t dim, const Rotation& r) {
  const bool halves = r.style == RopeStyle::half_split;
  const std::int64_t piece = std::max<std::int64_t>(1, kPiece / (heads * dim));
  in_pieces(rows, piece, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t t = first; t < last; ++t) {
      const float *cosine = r.cosines.data() + t * r.pairs, *sine = r.sines.data() + t * r.pairs;
      for (std::int64_t h = 0; h < heads; ++h) {
        float* row = x + (t * heads + h) * dim;
        if (halves) {
          float* other = row + r.pairs;
          for (std::int64_t i = 0; i < r.pairs; ++i) {
            const float a = row[i], b = other[i];
            row[i] = a * cosine[i] - b * sine[i];
            other[i] = b * cosine[i] + a * sine[i];
          }
        } else {
          for (std::int64_t i = 0; i < r.pairs; ++i) {
            const float a = row[2 * i], b = row[2 * i + 1];
            row[2 * i] = a * cosine[i] - b * sine[i];
            row[2 * i + 1] = b * cosine[i] + a * sine[i];
          }
        }
      }
    }
  });
}

void norm_rows(const float* x, const float* weight, const float* bias, float* y, std::int64_t rows, std::int64_t width,
               NormKind kind, double eps) {
  const auto sum = [width](const auto& term) {
    double lanes[8] = {};
    for (std::int64_t j = 0; j < width; ++j) lanes[j % 8] += term(j);
    return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
  };
  in_pieces(rows, std::max<std::int64_t>(1, kPiece / width), [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      const float* from = x + r * width;
      float* to = y + r * width;
      const double n = static_cast<double>(width);
      const double mean =
          kind == NormKind::layer ? sum([&](std::int64_t j) { return static_cast<double>(from[j]); }) / n : 0.0;
      const double squares = sum([&](std::int64_t j) {
        const double d = static_cast<double>(from[j]) - mean;
        return d * d;
      });
      const auto scale = static_cast<float>(1 / std::sqrt(squares / n + eps)), centre = static_cast<float>(mean);
      for (std::int64_t j = 0; j < width; ++j)
        to[j] = (from[j] - centre) * scale * weight[j] + (bias == nullptr ? 0.0F : bias[j]);
    }
  });
}

void add_rows(float* x, const float* y, std::int64_t count) {
  in_pieces(count, kPiece * 4, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) x[i] += y[i];
  });
}

void activate(const float* gate, const float* up, float* y, std::int64_t count, ActivationKind kind) {
  const auto act = [kind](float x) {
    switch (kind) {
      case ActivationKind::silu:
        return x / (1 + std::exp(-x));
      case ActivationKind::gelu:
        return 0.5F * x * (1 + std::erf(x * std::numbers::sqrt2_v<float> / 2));
      case ActivationKind::gelu_tanh:
        return 0.5F * x * (1 + std::tanh(0.7978845608F * (x + 0.044715F * x * x * x)));
      case ActivationKind::relu:
        return std::max(x, 0.0F);
    }
    return x;
  };
  in_pieces(count, kPiece, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) y[i] = up == nullptr ? act(gate[i]) : act(gate[i]) * up[i];
  });
}

void add_sinusoidal(float* row, std::int64_t width, std::int64_t position) {
  std::vector<float> sines(static_cast<std::size_t>(width));
  sinusoidal(view_of(sines.data(), {1, 1, 1, width}), {.first_position = position});
  for (std::int64_t j = 0; j < width; ++j) row[j] += sines[static_cast<std::size_t>(j)];
}

void narrow(const float* x, void* y, std::int64_t count, DType dtype) {
  auto* halves = static_cast<std::uint16_t*>(y);
  in_pieces(count, kPiece, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i)
      halves[i] = dtype == DType::f16 ? float_to_f16(x[i]) : float_to_bf16(x[i]);
  });
}

void widen(const void* x, float* y, std::int64_t count, DType dtype) {
  const auto* halves = static_cast<const std::uint16_t*>(x);
  in_pieces(count, kPiece, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i)
      y[i] = dtype == DType::f16 ? f16_to_float(halves[i]) : bf16_to_float(halves[i]);
  });
}

}  // namespace attend::llm
