// Small random attention problems in double, over every option: deterministic, a function of their number.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "attend/attention.hpp"
#include "base/random.hpp"

namespace attend::test::small {

class Draws {
 public:
  explicit Draws(std::uint64_t key) : key_(key) {}

  std::int64_t integer(std::int64_t low, std::int64_t high) {  // both included
    return low + static_cast<std::int64_t>(uniform(key_, next_++) * static_cast<double>(high - low + 1));
  }
  bool chance(double probability) { return uniform(key_, next_++) < probability; }
  double real(double low, double high) { return low + (high - low) * uniform(key_, next_++); }

  std::vector<std::int64_t> integers(std::int64_t count, std::int64_t low, std::int64_t high) {
    std::vector<std::int64_t> values(static_cast<std::size_t>(count));
    for (auto& value : values) value = integer(low, high);
    return values;
  }
  std::vector<std::uint8_t> bits(std::int64_t count) {
    std::vector<std::uint8_t> values(static_cast<std::size_t>(count));
    for (auto& value : values) value = chance(0.6) ? 1 : 0;
    return values;
  }
  std::vector<std::int64_t> cumulative(std::int64_t segments, std::int64_t length) {
    std::vector<std::int64_t> values = integers(segments + 1, 0, length);
    values.front() = 0;
    if (chance(0.7)) values.back() = length;  // else the rest is padding
    std::sort(values.begin(), values.end());
    return values;
  }
  Tensor tensor(const Shape& shape) {
    Tensor x(DType::f64, shape);
    for (std::int64_t n = 0; n < x.size(); ++n) x.data<double>()[n] = normal(key_, next_++);
    return x;
  }

 private:
  std::uint64_t key_;
  std::uint64_t next_ = 0;
};

// The user's rule of these tests: not linear, and different in every place.
inline double rule_phase(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
  return 0.5 * static_cast<double>(b) + 0.7 * static_cast<double>(h) + 0.3 * static_cast<double>(i) -
         0.4 * static_cast<double>(j);
}
inline double rule_value(double s, double phase) {
  return s + 0.6 * std::sin(s + phase);
}
inline ScoreRule wavy_rule() {
  return {[](auto tile) {
            using T = std::remove_reference_t<decltype(tile(0, 0))>;
            for (std::int64_t r = 0; r < tile.rows; ++r) {
              for (std::int64_t c = 0; c < tile.cols; ++c) {
                const double phase = rule_phase(tile.batch, tile.head, tile.first_row + r, tile.first_col + c);
                tile(r, c) = static_cast<T>(rule_value(static_cast<double>(tile(r, c)), phase));
              }
            }
          },
          [](auto scores, auto grad) {
            using T = std::remove_reference_t<decltype(grad(0, 0))>;
            for (std::int64_t r = 0; r < grad.rows; ++r) {
              for (std::int64_t c = 0; c < grad.cols; ++c) {
                const double phase = rule_phase(grad.batch, grad.head, grad.first_row + r, grad.first_col + c);
                grad(r, c) *= static_cast<T>(1 + 0.6 * std::cos(static_cast<double>(scores(r, c)) + phase));
              }
            }
          }};
}

// Options hold views of the tensors beside them, which stay valid when the problem is moved.
struct Problem {
  std::int64_t B, H, Hk, M, N, D, E;
  Tensor q, k, v, dout;
  Tensor bias, slopes, sinks;  // empty when not used
  std::vector<std::uint8_t> dense_bits;
  AttentionOptions options;
  std::vector<std::string> features;  // what this problem covers, to be counted
};

inline constexpr std::int64_t kMaskKinds = 18;

inline Mask random_mask(Draws& draws, Problem& p, std::int64_t kind) {
  const std::int64_t per_batch = draws.chance(0.5) ? 1 : p.B;
  const auto diagonal = [&]() -> Diagonal {
    if (draws.chance(0.3)) return Diagonal::at(draws.integers(per_batch, -1, p.N));
    return draws.chance(0.5) ? Align::first_key : Align::last_key;
  };
  switch (kind) {
    case 0:
      return no_mask();
    case 1:
      return causal(Align::first_key);
    case 2:
      return causal(Align::last_key);
    case 3:
      return causal(Diagonal::at(draws.integers(per_batch, -1, p.N)));
    case 4:
      return window(draws.integer(kUnlimited, 2), draws.integer(kUnlimited, 2), diagonal());
    case 5:
      return padding(draws.integers(per_batch, 0, p.N));
    case 6:
      return left_padding(draws.integers(per_batch, 0, p.N));
    case 7:
      return prefix(draws.integers(per_batch, 0, p.N), diagonal());
    case 8:
      return segments(draws.cumulative(3, std::min(p.M, p.N)));
    case 9:
      return segments(draws.cumulative(2, p.M), draws.cumulative(2, p.N)) & causal(diagonal());
    case 10:
      return window(1, 1, diagonal()) & segments(draws.cumulative(2, p.M), draws.cumulative(2, p.N));
    case 11: {
      const std::int64_t heads = draws.chance(0.5) ? 1 : p.H;
      const std::int64_t rows = (p.M + 1) / 2, cols = (p.N + 2) / 3;
      return blocks(2, 3, heads, rows, cols, draws.bits(heads * rows * cols));
    }
    case 12: {
      const Shape shape = {draws.chance(0.5) ? 1 : p.B, draws.chance(0.5) ? 1 : p.H, draws.chance(0.3) ? 1 : p.M,
                           draws.chance(0.3) ? 1 : p.N};
      p.dense_bits = draws.bits(shape[0] * shape[1] * shape[2] * shape[3]);
      return dense(p.dense_bits.data(), shape);
    }
    case 13:
      return (window(1, 1, diagonal()) & chunks(2, 0, diagonal())) | columns(p.N + 2, 0);
    case 14:
      return causal(diagonal()) & (dilated(2, diagonal()) | columns(3, 1, draws.integer(1, 2)));
    case 15:
      return global_tokens({draws.integer(0, p.N - 1)}, diagonal()) | window(1, 0, diagonal());
    case 16:
      return segments(draws.cumulative(2, p.M), draws.cumulative(2, p.N)) &
             (tokens({0}) | except(dilated(2) & padding(draws.integers(per_batch, 0, p.N))));
    default:
      return causal() & window(2, 1) & padding(draws.integers(per_batch, 1, p.N));
  }
}

inline Problem random_problem(std::uint64_t number) {
  Draws draws(number);
  Problem p;
  p.B = draws.integer(1, 2);
  p.Hk = draws.integer(1, 2);
  p.H = p.Hk * draws.integer(1, 3);
  p.M = draws.integer(1, 5);
  p.N = draws.integer(1, 6);
  p.D = draws.integer(1, 4);
  p.E = draws.integer(1, 4);
  p.q = draws.tensor({p.B, p.H, p.M, p.D});
  p.k = draws.tensor({p.B, p.Hk, p.N, p.D});
  p.v = draws.tensor({p.B, p.Hk, p.N, p.E});
  p.dout = draws.tensor({p.B, p.H, p.M, p.E});

  AttentionOptions& o = p.options;
  const auto option = [&](const char* feature, double probability) {
    const bool on = draws.chance(probability);
    if (on) p.features.emplace_back(feature);
    return on;
  };
  const std::int64_t kind = static_cast<std::int64_t>(number) % kMaskKinds;
  o.mask = random_mask(draws, p, kind);
  p.features.push_back("mask " + std::to_string(kind));
  if (option("scale", 0.4)) o.scale = draws.real(0.2, 1.5);
  if (option("softcap", 0.4)) o.softcap = draws.real(0.5, 3);
  if (option("rule", 0.4)) o.rule = wavy_rule();
  if (option("bias", 0.6)) {
    Shape shape = {p.B, p.H, p.M, p.N};
    for (std::size_t d = 0; d < 4; ++d) {
      if (draws.chance(0.4)) shape[d] = 1;
    }
    p.bias = draws.tensor(shape);
    o.bias = p.bias.view();
  }
  if (option("alibi", 0.4)) {
    p.slopes = draws.tensor({draws.chance(0.5) ? 1 : p.B, p.H, 1, 1});
    o.alibi_slopes = p.slopes.view();
    if (draws.chance(0.5)) o.alibi_diagonal = Align::first_key;
    if (draws.chance(0.3)) o.alibi_diagonal = Diagonal::at(draws.integers(p.B, -1, p.N));
  }
  if (option("sinks", 0.4)) {
    p.sinks = draws.tensor({1, p.H, 1, 1});
    o.sinks = p.sinks.view();
  }
  if (option("dropout", 0.3)) o.dropout = {draws.real(0.1, 0.6), number};
  if (p.H != p.Hk) p.features.emplace_back("GQA");
  if (p.D != p.E) p.features.emplace_back("E != D");
  if (p.M < p.N) p.features.emplace_back("M < N");
  if (p.M > p.N) p.features.emplace_back("M > N");
  return p;
}

}  // namespace attend::test::small
