// The exact weights on request, and rules of the user's own: what they are given, and what comes of it.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "support/buffer.hpp"
#include "support/compare.hpp"
#include "support/tensors.hpp"

namespace attend::test {
namespace {

using std::int64_t;

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64};

Case small_case(int mask) {
  Case c;
  c.B = 2;
  c.H = 6;
  c.Hk = 2;
  c.M = 23;
  c.N = 90;
  c.D = c.E = 20;
  c.mask = static_cast<MaskKind>(mask);
  return c;
}

// Against the truth: 16 u (1 + max|s|) p, the rounding to the weights' own dtype, and what underflow takes.
void check_weights(const Problem& p, const Truth& truth, const View& weights, DType computed_in,
                   const std::string& where) {
  const std::vector<double> got = to_doubles(weights);
  const std::vector<double>& expected = truth.results.weights;
  ASSERT_EQ(got.size(), expected.size());
  const int64_t N = p.info.N;
  for (int64_t row = 0; row < std::ssize(got) / N; ++row) {
    const double size = truth.magnitudes.score[static_cast<std::size_t>(row)];
    double sum = 0;
    double expected_sum = 0;
    for (int64_t n = row * N; n < (row + 1) * N; ++n) {
      const double x = got[static_cast<std::size_t>(n)], wanted = expected[static_cast<std::size_t>(n)];
      const double own = 16 * unit_roundoff(computed_in) * size * wanted + 0x1p-120;
      ASSERT_LE(std::abs(x - wanted), own + half_ulp(weights.dtype, wanted + own)) << where << " row " << row;
      sum += x;
      expected_sum += wanted;
    }
    // The rows add up to 1, less the sink's share, where weights are not rounded to a half type.
    if (weights.dtype == DType::f32 || weights.dtype == DType::f64) {
      ASSERT_NEAR(sum, expected_sum, 1e-5) << where << " row " << row;
    }
    if (!p.info.sinks) {
      ASSERT_NEAR(expected_sum, std::round(expected_sum), 1e-12) << where << " row " << row;
    }
  }
}

TEST(Weights, AreTheSoftmax) {
  for (int mask = 0; mask <= static_cast<int>(kLastMask); ++mask) {
    for (const bool ruled : {false, true}) {
      Case c = small_case(mask);
      c.sinks = ruled;
      c.dropout = ruled ? 0.3 : 0;  // weights are those before dropout
      c.bias = ruled ? BiasKind::by_row : BiasKind::none;
      const Problem p(c);
      const Truth truth = true_attention(p, true);
      for (const DType dtype : kDTypes) {
        for (const DType stored : kDTypes) {
          if (stored == DType::f64 && dtype != DType::f64) continue;
          for (const Layout layout : {Layout::bhld, Layout::odd}) {
            Tensors t(p, dtype);
            Buffer weights(stored, {c.B, c.H, c.M, c.N}, layout, 2);
            attention(t.q, t.k, t.v, t.out, p.options(dtype), {.lse = {}, .weights = weights.view()});
            const std::string where = p.info.problem_name() + " " + name(dtype) + " weights in " + name(stored);
            check_weights(p, truth, weights.view(), dtype, where);
            ASSERT_TRUE(weights.gaps_are_whole()) << where;

            // Asking for more changes nothing else.
            Tensors alone(p, dtype);
            attention(alone.q, alone.k, alone.v, alone.out, p.options(dtype));
            ASSERT_TRUE(same_bits(t.out, alone.out)) << where;
          }
        }
      }
    }
  }
}

TEST(Weights, FreshlyAllocated) {
  const Problem p(small_case(static_cast<int>(MaskKind::causal_last)));
  const Truth truth = true_attention(p, true);
  for (const DType dtype : kDTypes) {
    Tensors t(p, dtype);
    t.forward(p.options(dtype));
    const AttentionResult result = attention(t.q, t.k, t.v, p.options(dtype), {.lse = true, .weights = true});
    EXPECT_TRUE(same_bits(result.out, t.out));
    EXPECT_TRUE(same_bits(result.lse, t.lse));
    EXPECT_EQ(result.weights.dtype(), dtype == DType::f64 ? DType::f64 : DType::f32);
    check_weights(p, truth, result.weights, dtype, name(dtype));
  }
}

// What rules see: every visible score once or more, in place, scaled and capped.
TEST(Rules, SeeScoresWithTheirPlaces) {
  for (int mask = 0; mask <= static_cast<int>(kLastMask); ++mask) {
    Case c = small_case(mask);
    c.softcap = 4;
    const Problem p(c);
    for (const DType dtype : kDTypes) {
      std::mutex mutex;
      std::set<std::tuple<int64_t, int64_t, int64_t, int64_t>> seen;
      int64_t outside = 0;
      double worst = 0;
      const auto look = [&](auto tile) {
        const std::lock_guard lock(mutex);
        for (int64_t r = 0; r < tile.rows; ++r) {
          for (int64_t column = 0; column < tile.cols; ++column) {
            const int64_t b = tile.batch, h = tile.head, i = tile.first_row + r, j = tile.first_col + column;
            if (b < 0 || b >= c.B || h < 0 || h >= c.H || i < 0 || i >= c.M || j < 0 || j >= c.N) {
              ++outside;
              continue;
            }
            if (p.visible_row(b, h, i)[j] == 0) continue;
            seen.insert({b, h, i, j});
            double dot = 0;
            for (int64_t d = 0; d < c.D; ++d) {
              dot += static_cast<double>(p.q[static_cast<std::size_t>(((b * c.H + h) * c.M + i) * c.D + d)]) *
                     static_cast<double>(p.k[static_cast<std::size_t>(((b * c.Hk + h / 3) * c.N + j) * c.D + d)]);
            }
            const double expected = 4 * std::tanh(p.scale() * dot / 4);
            worst = std::max(worst, std::abs(static_cast<double>(tile(r, column)) - expected));
          }
        }
      };
      AttentionOptions options = p.options(dtype);
      options.rule = ScoreRule(look);
      Tensors t(p, dtype);
      t.forward(options);
      int64_t visible = 0;
      for (int64_t row = 0; row < c.B * c.H * c.M; ++row) {
        const std::uint8_t* bits = p.visible_row(row / c.M / c.H, row / c.M % c.H, row % c.M);
        for (int64_t j = 0; j < c.N; ++j) visible += bits[j] != 0;
      }
      EXPECT_EQ(outside, 0) << p.info.problem_name();
      EXPECT_EQ(std::ssize(seen), visible) << p.info.problem_name() << " " << name(dtype);
      EXPECT_LT(worst, 1e-5) << p.info.problem_name() << " " << name(dtype);
    }
  }
}

// The gradient's callable gets the scores that the forward one got, and the gradient in the same places.
TEST(Rules, BackwardSeesTheSameScores) {
  const Case c = small_case(static_cast<int>(MaskKind::causal_last));
  const Problem p(c);
  for (const DType dtype : kDTypes) {
    // First run: remember each score. Second: compare.
    std::mutex mutex;
    std::vector<double> score(static_cast<std::size_t>(c.B * c.H * c.M * c.N), -1e9);
    const auto index = [&](const auto& tile, int64_t r, int64_t column) {
      return static_cast<std::size_t>(((tile.batch * c.H + tile.head) * c.M + tile.first_row + r) * c.N +
                                      tile.first_col + column);
    };
    int64_t compared = 0;
    int64_t different = 0;
    const auto forward = [&](auto tile) {
      const std::lock_guard lock(mutex);
      for (int64_t r = 0; r < tile.rows; ++r) {
        for (int64_t column = 0; column < tile.cols; ++column) {
          score[index(tile, r, column)] = static_cast<double>(tile(r, column));
        }
      }
    };
    const auto backward = [&](auto scores, auto grad) {
      const std::lock_guard lock(mutex);
      for (int64_t r = 0; r < scores.rows; ++r) {
        for (int64_t column = 0; column < scores.cols; ++column) {
          ++compared;
          different += std::abs(static_cast<double>(scores(r, column)) - score[index(scores, r, column)]) > 1e-5;
          different += index(scores, r, column) != index(grad, r, column);
        }
      }
    };
    AttentionOptions options = p.options(dtype);
    options.rule = ScoreRule(forward, backward);
    Tensors t(p, dtype);
    t.run(options);
    EXPECT_GT(compared, c.B * c.H * c.M * c.N / 2) << name(dtype);
    EXPECT_EQ(different, 0) << name(dtype);
  }
}

// An exception of the user's own comes out of the call, on any thread.
TEST(Rules, ExceptionsComeOut) {
  const Problem p(small_case(0));
  for (const DType dtype : kDTypes) {
    Tensors t(p, dtype);
    t.forward(p.options(dtype));
    AttentionOptions options = p.options(dtype);
    options.rule =
        ScoreRule([](auto) { throw std::runtime_error("mine"); }, [](auto, auto) { throw std::runtime_error("mine"); });
    EXPECT_THROW(t.forward(options), std::runtime_error) << name(dtype);
    EXPECT_THROW(t.backward(options), std::runtime_error) << name(dtype);
    // And the next call is as good as any.
    Tensors before(p, dtype), after(p, dtype);
    before.forward(p.options(dtype));
    EXPECT_THROW(after.forward(options), std::runtime_error) << name(dtype);
    after.forward(p.options(dtype));
    EXPECT_EQ(after.difference(before), "") << name(dtype);
  }
}

}  // namespace
}  // namespace attend::test
