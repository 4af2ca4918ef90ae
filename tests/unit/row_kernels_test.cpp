// The row kernels on every instruction set: exp, and what must have the same bits on all of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/random.hpp"
#include "support/kernels.hpp"

namespace attend {
namespace {

std::vector<float> drawn(std::int64_t count, std::uint64_t key) {
  std::vector<float> x;
  for (std::int64_t n = 0; n < count; ++n) x.push_back(static_cast<float>(normal(key, static_cast<std::uint64_t>(n))));
  return x;
}

// Every 97th float of the range in which the result is a normal number.
TEST(Exp, WithinTwoUlpOnEveryInstructionSet) {
  std::vector<float> x;
  for (const float sign : {1.0F, -1.0F})
    for (std::uint32_t bits = 0x33000000U; bits < 0x42AE0000U; bits += 97)  // 2^-25 to 87
      x.push_back(sign * std::bit_cast<float>(bits));
  std::vector<float> y(x.size());
  for (const KernelTable* table : test::testable_kernels()) {
    table->exp(x.data(), y.data(), std::ssize(x));
    double worst = 0;
    for (std::size_t n = 0; n < x.size(); ++n) {
      const double expected = std::exp(static_cast<double>(x[n]));
      const double step = std::ldexp(1.0, std::ilogb(expected) - 23);
      worst = std::max(worst, std::abs(static_cast<double>(y[n]) - expected) / step);
    }
    EXPECT_LE(worst, 2.0) << table->name;
    RecordProperty(table->name, std::to_string(worst));
  }
}

TEST(Exp, EndsOfTheRange) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {0.0F, -0.0F, kInf, 89.0F, 1e30F, -kInf, -105.0F, -1e30F, std::nanf("")};
  for (const KernelTable* table : test::testable_kernels()) {
    std::vector<float> y(x.size());
    table->exp(x.data(), y.data(), std::ssize(x));
    for (const std::size_t n : {0U, 1U}) EXPECT_EQ(y[n], 1.0F) << table->name;
    for (const std::size_t n : {2U, 3U, 4U}) EXPECT_EQ(y[n], kInf) << table->name << " at " << x[n];
    for (const std::size_t n : {5U, 6U, 7U}) EXPECT_EQ(y[n], 0.0F) << table->name << " at " << x[n];
    EXPECT_TRUE(std::isnan(y[8])) << table->name;
  }
}

// Norms are made in double, rotations without a fused product: no instruction set rounds them in another way.
TEST(RowKernels, NormsAndRotationsHaveTheSameBitsEverywhere) {
  for (const std::int64_t n : {2, 14, 64, 130, 576, 1000}) {
    const std::vector<float> x = drawn(n, 1), weight = drawn(n, 2), dy = drawn(n, 3);
    std::vector<float> first;
    for (const KernelTable* table : test::testable_kernels()) {
      const RowKernels& k = table->rows;
      std::vector<float> y(static_cast<std::size_t>(10 * n));
      std::vector<double> sums(static_cast<std::size_t>(2 * n));
      float* to = y.data();
      k.rms_norm(x.data(), 1, weight.data(), 1e-6, n, to);
      k.rms_norm_backward(dy.data(), x.data(), 1, weight.data(), 1e-6, n, nullptr, to + n, sums.data());
      k.layer_norm(x.data(), weight.data(), dy.data(), 1e-6, n, to + 2 * n);
      k.layer_norm_backward(dy.data(), x.data(), weight.data(), 1e-6, n, to + 3 * n, sums.data(), sums.data() + n);
      int at = 4;
      for (const bool interleaved : {false, true})
        for (const bool backward : {false, true})
          k.rope({x.data(), to + n * at++, 1, n}, weight.data(), dy.data(), n / 2, interleaved, backward);
      for (std::size_t j = 0; j < sums.size(); ++j)
        y[static_cast<std::size_t>(8 * n) + j] = static_cast<float>(sums[j]);
      if (first.empty()) first = y;
      EXPECT_EQ(std::memcmp(y.data(), first.data(), y.size() * sizeof(float)), 0) << table->name << ", " << n;
    }
  }
}

TEST(RowKernels, InPlaceIsTheSame) {
  const std::int64_t n = 139;
  const std::vector<float> x = drawn(n, 4), weight = drawn(n, 5);
  for (const KernelTable* table : test::testable_kernels()) {
    const RowKernels& k = table->rows;
    const auto check = [&](const char* what, const auto& run) {
      std::vector<float> apart(x.size()), in_place = x;
      run(x.data(), apart.data());
      run(in_place.data(), in_place.data());
      EXPECT_EQ(std::memcmp(apart.data(), in_place.data(), x.size() * sizeof(float)), 0) << what << table->name;
    };
    check("rms_norm ", [&](const float* a, float* b) { k.rms_norm(a, 1, weight.data(), 1e-5, n, b); });
    check("layer_norm ", [&](const float* a, float* b) { k.layer_norm(a, weight.data(), nullptr, 1e-5, n, b); });
    check("silu ",
          [&](const float* a, float* b) { k.activation(Activation::silu, DType::f32, a, weight.data(), n, b); });
    check("add ", [&](const float* a, float* b) { k.add(a, weight.data(), n, b); });
    check("dropout ", [&](const float* a, float* b) { k.dropout(a, n, 13, 7, 1U << 31, 2.0F, b); });
    for (const bool interleaved : {false, true}) {
      std::vector<float> apart = x, in_place = x;  // the last of an odd number of elements is in no pair
      k.rope({x.data(), apart.data(), 1, n}, weight.data(), weight.data() + 70, n / 2, interleaved, false);
      k.rope({in_place.data(), in_place.data(), 1, n}, weight.data(), weight.data() + 70, n / 2, interleaved, false);
      EXPECT_EQ(std::memcmp(apart.data(), in_place.data(), x.size() * sizeof(float)), 0) << "rope " << table->name;
    }
  }
}

TEST(RowKernels, SumsOfExponentials) {
  for (const std::int64_t n : {1, 15, 100, 50'257}) {
    const std::vector<float> x = drawn(n, 6);
    double sum = 0;
    for (const float value : x) sum += std::exp(static_cast<double>(value));
    for (const KernelTable* table : test::testable_kernels()) {
      float largest = 0;
      double got = 0;
      table->rows.exp_sum(x.data(), n, &largest, &got);
      EXPECT_EQ(largest, *std::max_element(x.begin(), x.end())) << table->name;
      EXPECT_NEAR(got * std::exp(static_cast<double>(largest)) / sum, 1.0, 20 * 0x1p-24) << table->name;
    }
  }
}

// Wherever the largest number is, also in the last vector that is not whole, and where all are below 0.
TEST(RowKernels, TheLargestIsFoundAnywhere) {
  for (const std::int64_t n : {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 255, 257, 300}) {
    for (std::int64_t at = 0; at < n; at += n < 70 ? 1 : n - 1) {
      std::vector<float> x(static_cast<std::size_t>(n), -70.0F);
      x[static_cast<std::size_t>(at)] = -50.0F;
      for (const KernelTable* table : test::testable_kernels()) {
        float largest = 0;
        double sum = 0;
        table->rows.exp_sum(x.data(), n, &largest, &sum);
        EXPECT_EQ(largest, -50.0F) << table->name << " " << n << " at " << at;
        const double expected = 1 + static_cast<double>(n - 1) * std::exp(-20.0);
        EXPECT_NEAR(sum, expected, 1e-6) << table->name << " " << n << " at " << at;
      }
    }
  }
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()})
    for (const std::size_t at : {std::size_t{0}, std::size_t{40}, std::size_t{69}}) {
      std::vector<float> x(70, 1.0F);
      x[at] = bad;
      for (const KernelTable* table : test::testable_kernels()) {
        float largest = 0;
        double sum = 0;
        table->rows.exp_sum(x.data(), 70, &largest, &sum);
        EXPECT_TRUE(std::isnan(sum)) << table->name << " " << bad << " at " << at;
      }
    }
}

TEST(RowKernels, ScaledExponentialsOfEveryLength) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::int64_t n : {1, 2, 7, 8, 9, 15, 16, 17, 33, 70}) {
      const std::vector<float> x = drawn(n, 7);
      for (const KernelTable* table : test::testable_kernels()) {
        std::vector<float> apart(static_cast<std::size_t>(n + 1), 77.0F), in_place = x, before = apart;
        table->rows.scaled_exp(x.data(), n, 2.0F, 0.75F, dtype, apart.data());
        table->rows.scaled_exp(in_place.data(), n, 2.0F, 0.75F, dtype, in_place.data());
        const auto bytes = static_cast<std::size_t>(n * size_of(dtype));
        EXPECT_EQ(std::memcmp(apart.data(), in_place.data(), bytes), 0) << table->name << " " << n;
        for (std::int64_t j = 0; j < n; ++j) {
          const auto* halves = reinterpret_cast<const BFloat16*>(apart.data());
          const float got = dtype == DType::f32 ? apart[static_cast<std::size_t>(j)] : to_float(halves[j]);
          const double expected = 0.75 * std::exp(static_cast<double>(x[static_cast<std::size_t>(j)]) - 2);
          EXPECT_NEAR(got, expected, expected * (dtype == DType::f32 ? 4e-7 : 0x1p-8)) << table->name << " " << j;
        }
        const auto* end = reinterpret_cast<const char*>(apart.data()) + bytes;  // nothing after the row is written
        EXPECT_EQ(std::memcmp(end, reinterpret_cast<const char*>(before.data()) + bytes, 4), 0)
            << table->name << " " << n;
      }
    }
}

// The bits of an element are those of its number, in the largest of tensors and from any first element.
TEST(RowKernels, DropoutCountsElementsOfTheWholeTensor) {
  const std::uint32_t threshold = 3U << 30;
  for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{3}, std::uint64_t{62}, (std::uint64_t{1} << 34) - 5,
                                    (std::uint64_t{1} << 40) + 7})
    for (const std::int64_t n : {1, 61, 64, 130}) {
      const std::vector<float> x = drawn(n, 8);
      for (const KernelTable* table : test::testable_kernels()) {
        std::vector<float> y(x.size());
        table->rows.dropout(x.data(), n, first, 99, threshold, 4.0F, y.data());
        for (std::size_t j = 0; j < x.size(); ++j)
          ASSERT_EQ(y[j], element_dropout_bits(99, first + j) >= threshold ? 4.0F * x[j] : 0.0F)
              << table->name << " " << first << " + " << j;
      }
    }
}

}  // namespace
}  // namespace attend
