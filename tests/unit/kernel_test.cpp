// The kernels' own exp2, the matrix product and the ceiling, on every instruction set that tests can run.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/random.hpp"
#include "ops/matmul.hpp"
#include "support/kernels.hpp"

namespace attend {
namespace {

double ulps(float got, double expected) {
  const auto nearest = static_cast<float>(expected);
  const float next = std::nextafter(nearest, std::numeric_limits<float>::infinity());
  return std::abs(static_cast<double>(got) - expected) / static_cast<double>(next - nearest);
}

// The largest error of `exp2` over every 97th float of the range in which the result is a normal number.
double worst_exp2(void (*exp2)(const float*, float*, std::int64_t)) {
  std::vector<float> x;
  for (float sign : {1.0F, -1.0F})
    for (std::uint32_t bits = 0x33000000U; bits < 0x42FA0000U; bits += 97)  // 2^-25 to 125
      x.push_back(sign * std::bit_cast<float>(bits));
  std::vector<float> y(x.size());
  exp2(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
  double worst = 0;
  for (std::size_t n = 0; n < x.size(); ++n) worst = std::max(worst, ulps(y[n], std::exp2(static_cast<double>(x[n]))));
  return worst;
}

TEST(Exp2, WithinTwoUlpOnEveryInstructionSet) {
  for (const KernelTable* table : test::testable_kernels()) {
    const double worst = worst_exp2(table->exp2);
    EXPECT_LE(worst, 2.0) << table->name;
    RecordProperty(table->name, std::to_string(worst));
  }
}

// The shorter one that makes weights which are rounded to bf16: the fit and its roundings are off by 2.4 ULP at most,
// and the fraction of a small negative t is rounded down to a float just below 1, which is another 0.7.
TEST(Exp2, OfBf16Weights) {
  for (const KernelTable* table : test::testable_kernels()) {
    const double worst = worst_exp2(table->exp2_bf16);
    EXPECT_LE(worst, 3.1) << table->name;
    RecordProperty(table->name, std::to_string(worst));
  }
}

TEST(Exp2, EndsOfTheRange) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {
      0.0F, -0.0F, 1.0F, -1.0F, -126.0F, -151.0F, -1e30F, -kInf, std::numeric_limits<float>::quiet_NaN()};
  const auto check = [&](const KernelTable* table, void (*exp2)(const float*, float*, std::int64_t)) {
    std::vector<float> y(x.size());
    exp2(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
    EXPECT_EQ(y[0], 1.0F) << table->name;
    EXPECT_EQ(y[1], 1.0F) << table->name;
    EXPECT_EQ(y[2], 2.0F) << table->name;
    EXPECT_EQ(y[3], 0.5F) << table->name;
    EXPECT_EQ(y[4], std::ldexp(1.0F, -126)) << table->name;
    for (std::size_t n = 5; n < 8; ++n) EXPECT_EQ(y[n], 0.0F) << table->name << " at " << x[n];
    EXPECT_TRUE(std::isnan(y[8])) << table->name;
  };
  for (const KernelTable* table : test::testable_kernels()) {
    check(table, table->exp2);
    check(table, table->exp2_bf16);
  }
}

struct MatmulCase {
  std::int64_t rows, cols, inner;
  bool a_transposed, b_transposed, bias;
};

TEST(Matmul, EqualsTheSumInEveryLayout) {
  for (const MatmulCase& c : {MatmulCase{1, 1, 1, false, false, false},
                              {7, 65, 33, false, true, true},
                              {97, 130, 600, true, false, false},
                              {5, 64, 1100, true, true, true},
                              {3, 0, 5, false, false, false},
                              {4, 6, 0, false, true, true},
                              {130, 6, 0, false, true, true},
                              {130, 70, 64, false, false, true}}) {
    std::vector<float> a(static_cast<std::size_t>(c.rows * c.inner)), b(static_cast<std::size_t>(c.inner * c.cols));
    std::vector<float> bias(static_cast<std::size_t>(c.cols)), out(static_cast<std::size_t>(c.rows * c.cols), -1.0F);
    std::uint64_t n = 0;
    for (auto* values : {&a, &b, &bias})
      for (float& x : *values) x = static_cast<float>(normal(11, n++));
    const Matrix A{DType::f32, a.data(), c.rows, c.inner, c.a_transposed ? 1 : c.inner, c.a_transposed ? c.rows : 1};
    const Matrix B{DType::f32, b.data(), c.inner, c.cols, c.b_transposed ? 1 : c.cols, c.b_transposed ? c.inner : 1};
    std::optional<Matrix> bias_row;
    if (c.bias) bias_row = Matrix{DType::f32, bias.data(), 1, c.cols, c.cols, 1};
    matmul(A, B, bias_row, {DType::f32, out.data(), c.rows, c.cols, c.cols, 1});
    for (std::int64_t i = 0; i < c.rows; ++i)
      for (std::int64_t j = 0; j < c.cols; ++j) {
        double sum = c.bias ? static_cast<double>(bias[static_cast<std::size_t>(j)]) : 0, size = std::abs(sum);
        for (std::int64_t k = 0; k < c.inner; ++k) {
          const double product = static_cast<double>(a[static_cast<std::size_t>(i * A.row_stride + k * A.col_stride)]) *
                                 static_cast<double>(b[static_cast<std::size_t>(k * B.row_stride + j * B.col_stride)]);
          sum += product;
          size += std::abs(product);
        }
        const double bound = 4 * std::numeric_limits<float>::epsilon() * size;
        EXPECT_NEAR(static_cast<double>(out[static_cast<std::size_t>(i * c.cols + j)]), sum, bound)
            << c.rows << "x" << c.inner << "x" << c.cols << " at " << i << ", " << j;
      }
  }
}

// bf16 in, f32 sums, one rounding at the end, in place and not, in every layout.
TEST(Matmul, Bf16EqualsTheSum) {
  for (const MatmulCase& c : {MatmulCase{1, 1, 1, false, false, false},
                              {7, 65, 33, false, true, true},
                              {97, 130, 600, true, false, false},
                              {130, 64, 1100, false, true, true},
                              {130, 70, 64, false, false, true},
                              {130, 192, 513, false, false, false}}) {
    auto draw = [n = std::uint64_t{0}](std::int64_t count) mutable {
      std::vector<BFloat16> x(static_cast<std::size_t>(count));
      for (BFloat16& value : x) value = to_bfloat16(static_cast<float>(normal(12, n++)));
      return x;
    };
    const std::vector<BFloat16> a = draw(c.rows * c.inner), b = draw(c.inner * c.cols), bias = draw(c.cols);
    std::vector<BFloat16> out(static_cast<std::size_t>(c.rows * c.cols));
    const Matrix A{DType::bf16, a.data(), c.rows, c.inner, c.a_transposed ? 1 : c.inner, c.a_transposed ? c.rows : 1};
    const Matrix B{DType::bf16, b.data(), c.inner, c.cols, c.b_transposed ? 1 : c.cols, c.b_transposed ? c.inner : 1};
    std::optional<Matrix> bias_row;
    if (c.bias) bias_row = Matrix{DType::bf16, bias.data(), 1, c.cols, c.cols, 1};
    matmul(A, B, bias_row, {DType::bf16, out.data(), c.rows, c.cols, c.cols, 1});
    const auto at = [](const std::vector<BFloat16>& x, std::int64_t n) {
      return static_cast<double>(to_float(x[static_cast<std::size_t>(n)]));
    };
    for (std::int64_t i = 0; i < c.rows; ++i)
      for (std::int64_t j = 0; j < c.cols; ++j) {
        double sum = c.bias ? at(bias, j) : 0, size = std::abs(sum);
        for (std::int64_t k = 0; k < c.inner; ++k) {
          const double product =
              at(a, i * A.row_stride + k * A.col_stride) * at(b, k * B.row_stride + j * B.col_stride);
          sum += product;
          size += std::abs(product);
        }
        const double bound = 4 * std::numeric_limits<float>::epsilon() * size + std::abs(sum) * 0x1p-8;
        ASSERT_NEAR(at(out, i * c.cols + j), sum, bound) << c.rows << "x" << c.inner << "x" << c.cols;
      }
  }
}

TEST(Ceiling, DoesTheWorkItCounts) {
  for (const KernelTable* table : test::testable_kernels()) {
    EXPECT_GE(table->fma_burst(1000), 1000.0 * 2 * table->lanes);
    EXPECT_GE(table->pair_burst(1000), 1000.0 * 2 * table->lanes);
  }
}

}  // namespace
}  // namespace attend
