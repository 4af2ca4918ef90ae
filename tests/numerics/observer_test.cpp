// Looking on: sums over a row's weights gathered in the forward sweep, and the weights shown tile by tile.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "attend/error.hpp"
#include "support/compare.hpp"
#include "support/tensors.hpp"

namespace attend::test {
namespace {

using std::int64_t;

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};

Case looked_at(int mask) {
  Case c;
  c.B = 2;
  c.H = 6;
  c.Hk = 2;
  c.M = 70;
  c.N = 700;  // two splits, the last tile not whole
  c.D = c.E = 20;
  c.mask = static_cast<MaskKind>(mask);
  return c;
}

// Three functions of the place: all ones, the distance, and something that differs in every place.
double observed(int64_t n, int64_t b, int64_t h, int64_t i, int64_t j) {
  if (n == 0) return 1;
  if (n == 1) return static_cast<double>(std::abs(i - j)) / 64;
  return std::sin(static_cast<double>(b + 2 * h + 3 * i + 5 * j));
}
constexpr int64_t kFunctions = 3;

void fill_observed(int64_t n, const ScoreTile<float>& tile) {
  for (int64_t r = 0; r < tile.rows; ++r)
    for (int64_t c = 0; c < tile.cols; ++c)
      tile(r, c) = static_cast<float>(observed(n, tile.batch, tile.head, tile.first_row + r, tile.first_col + c));
}

TEST(RowSums, AreSumsOverTheWeights) {
  for (int mask = 0; mask <= static_cast<int>(kLastMask); ++mask) {
    Case c = looked_at(mask);
    c.sinks = mask % 2 == 0;
    c.dropout = mask % 3 == 0 ? 0.3 : 0;  // sums are over the weights before dropout
    const Problem p(c);
    const Truth truth = true_attention(p, true);
    for (const DType dtype : kDTypes) {
      const std::string where = p.info.problem_name() + " " + name(dtype);
      Tensors t(p, dtype), alone(p, dtype);
      Tensor sums(DType::f32, {c.B, c.H, c.M, kFunctions});
      attention(t.q, t.k, t.v, t.out, p.options(dtype), {.row_sums = RowSums{sums, fill_observed}});
      attention(alone.q, alone.k, alone.v, alone.out, p.options(dtype));
      ASSERT_TRUE(same_bits(t.out, alone.out)) << where;  // looking changes nothing

      for (int64_t row = 0; row < c.B * c.H * c.M; ++row)
        for (int64_t n = 0; n < kFunctions; ++n) {
          const int64_t b = row / c.M / c.H, h = row / c.M % c.H, i = row % c.M;
          double expected = 0, size = 0;
          for (int64_t j = 0; j < c.N; ++j) {
            const double term =
                truth.results.weights[static_cast<std::size_t>(row * c.N + j)] * observed(n, b, h, i, j);
            expected += term;
            size += std::abs(term);
          }
          const double bound =
              32 * unit_roundoff(DType::f32) * truth.magnitudes.score[static_cast<std::size_t>(row)] * size + 1e-6;
          ASSERT_NEAR(static_cast<double>(sums.data<float>()[row * kFunctions + n]), expected, bound)
              << where << " row " << row << " function " << n;
        }
    }
  }
}

// One query over many keys splits its keys; its sums are the same bits as those of its row in the whole.
TEST(RowSums, OfARowAloneAreTheSame) {
  Case c = looked_at(static_cast<int>(MaskKind::causal_last));
  c.M = c.N;
  const Problem p(c);
  for (const DType dtype : kDTypes) {
    Tensors t(p, dtype);
    Tensor sums(DType::f32, {c.B, c.H, c.M, kFunctions}), one(DType::f32, {c.B, c.H, 1, kFunctions});
    attention(t.q, t.k, t.v, t.out, p.options(dtype), {.row_sums = RowSums{sums, fill_observed}});
    const int64_t i = c.M - 3;
    const View q = slice(View(t.q), 2, i, 1);
    Tensor out(dtype, {c.B, c.H, 1, c.E});
    AttentionOptions options = p.options(dtype);
    options.mask = causal(Diagonal::at({i}));
    const auto shifted = [&](int64_t n, ScoreTile<float> tile) {
      tile.first_row += i;
      fill_observed(n, tile);
    };
    attention(q, t.k, t.v, out, options, {.row_sums = RowSums{one, shifted}});
    for (int64_t head = 0; head < c.B * c.H; ++head)
      for (int64_t n = 0; n < kFunctions; ++n)
        EXPECT_EQ(one.data<float>()[head * kFunctions + n], sums.data<float>()[(head * c.M + i) * kFunctions + n]);
  }
}

TEST(VisitWeights, ShowsEveryWeightOnce) {
  for (int mask = 0; mask <= static_cast<int>(kLastMask); ++mask) {
    const Case c = looked_at(mask);
    const Problem p(c);
    for (const DType dtype : kDTypes) {
      const std::string where = p.info.problem_name() + " " + name(dtype);
      Tensors t(p, dtype);
      Tensor weights(DType::f32, {c.B, c.H, c.M, c.N});
      attention(t.q, t.k, t.v, t.out, p.options(dtype), {.lse = t.lse, .weights = weights});
      std::vector<float> shown(static_cast<std::size_t>(weights.size()), 0.0F);
      std::vector<int64_t> last(static_cast<std::size_t>(c.B * c.H * c.M), -1);  // the last key shown of each row
      std::mutex mutex;
      bool in_order = true;
      visit_weights(
          t.q, t.k, t.lse,
          [&](ScoreTile<const float> tile) {
            const std::lock_guard lock(mutex);
            for (int64_t r = 0; r < tile.rows; ++r) {
              const int64_t row = (tile.batch * c.H + tile.head) * c.M + tile.first_row + r;
              in_order &= tile.first_col > last[static_cast<std::size_t>(row)];
              last[static_cast<std::size_t>(row)] = tile.first_col + tile.cols - 1;
              for (int64_t j = 0; j < tile.cols; ++j)
                shown[static_cast<std::size_t>(row * c.N + tile.first_col + j)] = tile(r, j);
            }
          },
          p.options(dtype));
      EXPECT_TRUE(in_order) << where;
      for (int64_t n = 0; n < weights.size(); ++n)
        ASSERT_EQ(shown[static_cast<std::size_t>(n)], weights.data<float>()[n]) << where << " at " << n;
    }
  }
}

TEST(Observers, ExceptionsComeOut) {
  const Problem p(looked_at(0));
  Tensors t(p, DType::f32);
  Tensor sums(DType::f32, {2, 6, 70, 1});
  const auto thrower = [](int64_t, const ScoreTile<float>&) { throw std::runtime_error("from the user"); };
  EXPECT_THROW(attention(t.q, t.k, t.v, t.out, p.options(DType::f32), {.row_sums = RowSums{sums, thrower}}),
               std::runtime_error);
  const auto visitor = [](const ScoreTile<const float>&) { throw std::runtime_error("from the user"); };
  EXPECT_THROW(visit_weights(t.q, t.k, t.lse, visitor, p.options(DType::f32)), std::runtime_error);
}

TEST(Observers, BadArguments) {
  const Problem p(looked_at(0));
  Tensors t(p, DType::f32), wide(p, DType::f64);
  Tensor sums(DType::f32, {2, 6, 70, 1}), wrong(DType::f32, {2, 6, 69, 1}), half(DType::bf16, {2, 6, 70, 1});
  const auto options = p.options(DType::f32);
  const auto with = [&](const RowSums& row_sums) { attention(t.q, t.k, t.v, t.out, options, {.row_sums = row_sums}); };
  EXPECT_THROW(with({sums, nullptr}), InvalidArgument);
  EXPECT_THROW(with({wrong, fill_observed}), InvalidArgument);
  EXPECT_THROW(with({half, fill_observed}), InvalidArgument);
  EXPECT_THROW(with({t.out, fill_observed}), InvalidArgument);
  EXPECT_THROW(
      attention(wide.q, wide.k, wide.v, wide.out, p.options(DType::f64), {.row_sums = RowSums{sums, fill_observed}}),
      InvalidArgument);
  EXPECT_THROW(visit_weights(t.q, t.k, t.lse, nullptr, options), InvalidArgument);
  EXPECT_THROW(visit_weights(t.q, t.k, wrong, [](auto) {}, options), InvalidArgument);
  EXPECT_THROW(visit_weights(wide.q, wide.k, wide.lse, [](auto) {}, p.options(DType::f64)), InvalidArgument);
}

}  // namespace
}  // namespace attend::test
