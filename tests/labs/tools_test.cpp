// What labs measure with, against values written here: extremes with NaN, fits, limits of parameters.
#include "labs/tools.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "labs/lab.hpp"
#include "labs/relations.hpp"

namespace attend::labs {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Tensor tensor_of(const std::vector<float>& values) {
  Tensor tensor(DType::f32, {1, 1, 1, static_cast<std::int64_t>(values.size())});
  std::copy(values.begin(), values.end(), tensor.data<float>());
  return tensor;
}

TEST(LabTools, ExtremesOfNanAreNan) {
  EXPECT_EQ(largest_of({1, 3, 2}), 3);
  EXPECT_EQ(smallest_of({3, 1, 2}), 1);
  EXPECT_EQ(largest_of({-5}), -5);
  EXPECT_EQ(smallest_of({-5}), -5);
  for (const auto& values : {std::array{kNan, 1.0, 2.0}, std::array{1.0, kNan, 2.0}, std::array{1.0, 2.0, kNan}}) {
    EXPECT_TRUE(std::isnan(largest_of({values[0], values[1], values[2]})));
    EXPECT_TRUE(std::isnan(smallest_of({values[0], values[1], values[2]})));
  }
  for (std::size_t place = 0; place < 3; ++place) {
    std::vector<float> values = {1, -4, 2};
    const Tensor whole = tensor_of(values);
    EXPECT_EQ(largest(whole), 4);
    values[place] = std::numeric_limits<float>::quiet_NaN();
    const Tensor broken = tensor_of(values);
    EXPECT_TRUE(std::isnan(largest(broken))) << place;
    EXPECT_TRUE(std::isnan(largest_difference(whole, broken))) << place;
    EXPECT_TRUE(std::isnan(largest_difference(broken, whole))) << place;
  }
}

TEST(LabTools, DifferencesCountTheFirstAndTheLastElement) {
  const Tensor a = tensor_of({1, 2, 3}), first = tensor_of({0, 2, 3}), last = tensor_of({1, 2, 5});
  EXPECT_EQ(largest_difference(a, a), 0);
  EXPECT_EQ(largest_difference(a, first), 1);
  EXPECT_EQ(largest_difference(a, last), 2);
  EXPECT_TRUE(same_bits(a, a));
  EXPECT_FALSE(same_bits(a, last));
  EXPECT_FALSE(same_bits(tensor_of({0.0F}), tensor_of({-0.0F})));
  EXPECT_FALSE(same_bits(a, tensor_of({1, 2})));
  EXPECT_EQ(mean_square(a), 14.0 / 3);
}

TEST(LabTools, SlicesBeginWhereTheyAreAsked) {
  Tensor x(DType::f32, {1, 2, 3, 2});
  for (std::int64_t n = 0; n < x.size(); ++n) x.data<float>()[n] = static_cast<float>(n);
  EXPECT_EQ(doubles_of(slice(x, 2, 2, 1)), (std::vector<double>{4, 5, 10, 11}));
  EXPECT_EQ(doubles_of(slice(x, 1, 1, 1)), (std::vector<double>{6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(rows_of(x, 0, 1), (Rows{{6, 7}, {8, 9}, {10, 11}}));
}

TEST(LabTools, StatisticsHaveTheirTextbookValues) {
  EXPECT_EQ(mean_of({1, 2, 6}), 3);
  EXPECT_DOUBLE_EQ(deviation_of({2, 4, 4, 4, 5, 5, 7, 9}), 2);
  EXPECT_DOUBLE_EQ(entropy_of({0.25, 0.25, 0.25, 0.25}), std::log(4.0));
  EXPECT_EQ(entropy_of({1, 0, 0}), 0);
  const std::vector<double> weights = softmax_of({1000, 1000, -1e9});
  EXPECT_EQ(weights, (std::vector<double>{0.5, 0.5, 0}));
  EXPECT_NEAR(fitted_exponent({{10, 300}, {100, 30000}, {1000, 3e6}}), 2, 1e-12);
  EXPECT_NEAR(fitted_exponent({{1, 7}, {2, 7}}), 0, 1e-12);
}

TEST(LabTools, NumbersAreWrittenShortly) {
  EXPECT_EQ(number_text(0).en, "0.000");
  EXPECT_EQ(number_text(0.001).en, "0.001");
  EXPECT_EQ(number_text(0.000999).en, "1.0e-03");
  EXPECT_EQ(number_text(-0.0005).en, "-5.0e-04");
  EXPECT_EQ(number_text(9999999, 0).en, "9999999");
  EXPECT_EQ(number_text(1e7, 0).en, "1.0e+07");
  EXPECT_EQ(words_in("  a  b\tc\n"), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(words_in(" "), std::vector<std::string>{});
}

TEST(LabRelations, TargetsLookOneAndThreeTokensBackInTheirOwnRow) {
  const TinyBatch b = relation_batch(3, 7, 5);
  ASSERT_EQ(b.tokens.size(), 21U);
  ASSERT_EQ(b.targets.size(), 21U);
  for (std::size_t row = 0; row < 3; ++row)
    for (std::size_t i = 0; i < 7; ++i) {
      const std::size_t n = row * 7 + i;
      EXPECT_GE(b.tokens[n], 0);
      EXPECT_LT(b.tokens[n], 6);
      EXPECT_EQ(b.targets[n], i < 3 ? kNoTarget : 6 * b.tokens[n - 1] + b.tokens[n - 3]) << n;
    }
}

TEST(LabParameters, BothLimitsAreAllowedAndNothingBeyond) {
  for (const Lab& lab : all_labs())
    for (const Parameter& p : lab.parameters) {
      if (p.words) continue;
      for (const std::int64_t value : {p.least, p.most, p.preset, p.quick})
        EXPECT_EQ(Arguments(lab.parameters, {{p.name, std::to_string(value)}})[p.name], value) << lab.name << p.name;
      for (const std::int64_t value : {p.least - 1, p.most + 1})
        EXPECT_THROW(Arguments(lab.parameters, {{p.name, std::to_string(value)}}), Refused) << lab.name << p.name;
    }
}

}  // namespace
}  // namespace attend::labs
