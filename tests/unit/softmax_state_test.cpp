// The state of a softmax: merge, its identity, and states of rows whose LSE does not suffice.
#include "core/softmax_state.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "ops/softmax_rows.hpp"

namespace attend {
namespace {

const auto kExp = [](auto x) { return std::exp(x); };

template <class Score, class Sum>
SoftmaxState<Score, Sum> state_of_scores(const std::vector<Score>& scores) {
  SoftmaxState<Score, Sum> state;
  for (const Score s : scores) state = merge(state, SoftmaxState<Score, Sum>{s, 1}, kExp).whole;
  return state;
}

TEST(SoftmaxState, TheEmptyStateIsTheIdentity) {
  const SoftmaxState<float, float> none, some{3.5F, 0.1F};
  for (const auto& [a, b] : {std::pair{none, some}, {some, none}}) {
    const auto merged = merge(a, b, kExp);
    EXPECT_EQ(merged.whole.max, 3.5F);
    EXPECT_EQ(merged.whole.sum, 0.1F);
    EXPECT_EQ(merged.a, a.empty() ? 0.0F : 1.0F);
    EXPECT_EQ(merged.b, b.empty() ? 0.0F : 1.0F);
  }
  EXPECT_TRUE(merge(none, none, kExp).whole.empty());
  EXPECT_TRUE(state_of_lse(-std::numeric_limits<double>::infinity()).empty());
}

TEST(SoftmaxState, MergeIsTheSumOverTheKeysOfBoth) {
  std::mt19937 random(1);
  std::normal_distribution<double> normal(0, 20);
  for (int round = 0; round < 200; ++round) {
    std::vector<double> a(1 + random() % 20), b(1 + random() % 20), all;
    for (auto* part : {&a, &b})
      for (double& x : *part) all.push_back(x = normal(random));
    const auto merged = merge(state_of_scores<double, double>(a), state_of_scores<double, double>(b), kExp);
    double top = -1e300, sum = 0;
    for (const double x : all) top = std::max(top, x);
    for (const double x : all) sum += std::exp(x - top);
    EXPECT_EQ(merged.whole.max, top);
    EXPECT_NEAR(merged.whole.sum, sum, 1e-13 * sum);
    EXPECT_EQ(std::max(merged.a, merged.b), 1.0);
  }
}

TEST(SoftmaxState, AnLseSufficesUpTo1024) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float lse : {0.0F, 1024.0F, -1024.0F, -infinity, std::nanf("")}) EXPECT_TRUE(lse_suffices(lse)) << lse;
  for (const float lse : {std::nextafter(1024.0F, 2e3F), std::nextafter(-1024.0F, -2e3F), 1e30F, -1e30F, infinity,
                          std::numeric_limits<float>::lowest()})
    EXPECT_FALSE(lse_suffices(lse)) << lse;
}

TEST(SoftmaxState, EmptyRowStatesHaveNoShare) {
  const RowState none, some{1.0F, {3.0, 2.0}};
  for (const auto& [a, b] : {std::pair{none, some}, {some, none}}) {
    const RowState whole = merge(a, b);
    EXPECT_EQ(whole.held, 1.0F);
    EXPECT_EQ(whole.exact.max, 3.0);
    EXPECT_EQ(whole.exact.sum, 2.0);
    EXPECT_EQ(share_of(none, whole), 0);
    EXPECT_EQ(share_of(some, whole), 1);
  }
  EXPECT_TRUE(merge(none, none).exact.empty());
  EXPECT_EQ(share_of(none, merge(none, none)), 0);
}

// Scores of 10^6 apart by fractions: their LSE in f32 could not tell the shares.
TEST(SoftmaxState, RowStatesKeepSharesOfLargeScores) {
  const double top = 1e6;
  const RowState a{1.0F, {top, 2}}, b{2.0F, {top + 0.5, 3}};
  const RowState whole = merge(a, b);
  const double sum = 2 * std::exp(-0.5) + 3;
  EXPECT_EQ(whole.held, 2.0F);
  EXPECT_EQ(whole.exact.max, top + 0.5);
  EXPECT_NEAR(whole.exact.sum, sum, 1e-12);
  EXPECT_NEAR(share_of(a, whole), 2 * std::exp(-0.5) / sum, 1e-12);
  EXPECT_NEAR(share_of(b, whole), 3 / sum, 1e-12);
  EXPECT_EQ(share_of(RowState{}, whole), 0);
  EXPECT_EQ(merge(RowState{}, a).exact.sum, a.exact.sum);
  EXPECT_EQ(merge(a, RowState{}).held, a.held);
  EXPECT_NEAR(lse_of(whole), top + 0.5 + std::log(sum), 1e-9);
}

template <class T>
void expect_merged_average(T lse_a, T lse_b, double share) {
  std::vector<float> out = {1, -2}, part = {3, 5};
  RowState state{0, state_of_lse(static_cast<double>(lse_a))}, part_state{0, state_of_lse(static_cast<double>(lse_b))};
  T lse = lse_a;
  merge_into<T>({lse, &state, out.data()}, {lse_b, &part_state, part.data()}, 2);
  EXPECT_NEAR(out[0], 1 * share + 3 * (1 - share), 1e-6);
  EXPECT_NEAR(out[1], -2 * share + 5 * (1 - share), 2e-6);
}

TEST(SoftmaxState, AveragesMergeByTheirLse) {
  const double share = std::exp(0.25) / (std::exp(0.25) + 1);
  expect_merged_average<float>(1.25F, 1.0F, share);
  expect_merged_average<double>(1.25, 1.0, share);
  expect_merged_average<double>(2000.25, 2000.0, share);  // neither LSE suffices
  expect_merged_average<float>(5000.0F, 1.0F, 1);
}

// Three parts whose LSEs suffice: that of the first two together does not, and nobody has kept a softmax.
TEST(SoftmaxState, LsesThatSufficeMayMakeOneThatDoesNot) {
  for (const bool with_state : {false, true}) {
    RowState state;
    std::vector<float> out(1);
    double lse = -std::numeric_limits<double>::infinity();
    for (const float value : {1.0F, 2.0F, 6.0F})
      merge_into<double>({lse, with_state ? &state : nullptr, out.data()}, {1023.9, nullptr, &value}, 1);
    EXPECT_NEAR(lse, 1023.9 + std::log(3), 1e-9);
    EXPECT_NEAR(out[0], 3, 1e-6);
  }
}

TEST(SoftmaxState, AnAverageOverNothingChangesNoBit) {
  const float none = -std::numeric_limits<float>::infinity();
  std::vector<float> out = {-0.0F, 0.1F}, part = {0.0F, 7};
  RowState state;
  float lse = 1.5F;
  merge_into<float>({lse, &state, out.data()}, {none, nullptr, part.data()}, 2);
  EXPECT_TRUE(std::signbit(out[0]));
  EXPECT_EQ(out[1], 0.1F);
  EXPECT_EQ(lse, 1.5F);
  lse = none;
  merge_into<float>({lse, &state, part.data()}, {1.5F, nullptr, out.data()}, 2);
  EXPECT_TRUE(std::signbit(part[0]));
  EXPECT_EQ(part[1], 0.1F);
  EXPECT_EQ(lse, 1.5F);
}

}  // namespace
}  // namespace attend
