// The plain form of a mask that a GPU is given, asked on the CPU: the same intervals as the plan it comes from.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "attend/cuda.hpp"
#include "attend/error.hpp"
#include "attend/mask.hpp"
#include "cuda/lower_mask.hpp"

namespace attend::cuda {
namespace {

// Every query's interval; where a query sees nothing, any empty one will do. Also that neither bound ever falls.
void expect_same(const std::string& what, const Mask& mask, std::int64_t B, std::int64_t M, std::int64_t N) {
  const MaskPlan plan(mask, B, 1, M, N);
  DeviceMask lowered{};
  std::vector<int> ints;
  lower_mask(plan, lowered, ints);
  lowered.outside = ints.data();
  for (std::int64_t b = 0; b < B; ++b) {
    Interval before{0, 0};
    for (std::int64_t i = 0; i < M; ++i) {
      std::int64_t lo = 0, hi = 0;
      fill_intervals(plan, b, i, 1, &lo, &hi);
      const Interval seen = seen_by(lowered, static_cast<int>(b), static_cast<int>(i));
      const std::string place = what + ", batch " + std::to_string(b) + ", query " + std::to_string(i);
      if (lo >= hi) {
        EXPECT_GE(seen.lo, seen.hi) << place;
      } else {
        EXPECT_EQ(std::max(seen.lo, 0), std::max<std::int64_t>(lo, 0)) << place;
        EXPECT_EQ(seen.hi, hi) << place;
      }
      if (i > 0) {
        EXPECT_GE(seen.lo, before.lo) << place;
        EXPECT_GE(seen.hi, before.hi) << place;
      }
      before = seen;
    }
  }
}

TEST(CudaMask, HasTheIntervalsOfThePlan) {
  for (const auto& [M, N] : {std::pair{70, 70}, {40, 90}, {90, 40}, {1, 33}}) {
    const auto last = static_cast<std::int64_t>(N);
    expect_same("none", no_mask(), 2, M, N);
    expect_same("causal to the last key", causal(), 2, M, N);
    expect_same("causal to the first key", causal(Align::first_key), 2, M, N);
    expect_same("causal at", causal(Diagonal::at({-5, 7})), 2, M, N);
    expect_same("window", window(9, 3), 2, M, N);
    expect_same("window to the left", window(9, kUnlimited), 2, M, N);
    expect_same("window and causal", window(9, kUnlimited) & causal(), 2, M, N);
    expect_same("padding", padding({last, 3}), 2, M, N);
    expect_same("no keys", padding({0, last}), 2, M, N);
    expect_same("left padding and causal", left_padding({2, 20}) & causal(), 2, M, N);
    expect_same("prefix", prefix({11}), 2, M, N);
    expect_same("prefix by batch", prefix({11, 0}), 2, M, N);
    expect_same("prefix and window", prefix({11}) & window(15, kUnlimited), 2, M, N);
    expect_same("chunks", chunks(8, 1), 2, M, N);
  }
}

TEST(CudaMask, CountsWithinSegments) {
  const std::vector<std::int64_t> cu = {0, 10, 10, 31, 50};
  expect_same("segments", segments(cu), 1, 60, 60);
  expect_same("segments and causal", segments(cu) & causal(), 1, 60, 60);
  expect_same("segments and window", segments(cu) & window(4, 2, Align::first_key), 1, 60, 60);
  expect_same("queries and keys", segments(cu, {0, 20, 25, 30, 64}) & causal(), 1, 60, 64);
  expect_same("no segments", segments({0}), 1, 5, 5);
}

TEST(CudaMask, TooManyRulesAreRefused) {
  const MaskPlan plan(causal() & window(9, kUnlimited) & padding({3}) & chunks(2) & left_padding({1}), 1, 1, 8, 8);
  DeviceMask lowered{};
  std::vector<int> ints;
  EXPECT_THROW(lower_mask(plan, lowered, ints), InvalidArgument);
}

TEST(Cuda, SaysWhyItCannotRun) {
  if (available()) {
    EXPECT_EQ(why_not(), "");
    return;
  }
  EXPECT_NE(why_not(), "");
  Tensor q(DType::bf16, {1, 1, 4, 64}), out(DType::bf16, {1, 1, 4, 64});
  try {
    cuda::attention(q.view(), q.view(), q.view(), out.view());
    FAIL() << "it ran";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find(why_not()), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace attend::cuda
