// A call that is asked to stop: it throws what the check throws, the workers rest, and the next call is as always.
#include "attend/interrupt.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "attend/attend.hpp"
#include "base/interrupt.hpp"
#include "base/threads.hpp"
#include "op_testing.hpp"

namespace attend::test {
namespace {

using ops::random_tensor;

struct Stop : std::runtime_error {
  Stop() : std::runtime_error("stop") {}
};

void rest() {
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

class Interrupt : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    before_ = thread_count();
    set_thread_count(GetParam());
  }
  void TearDown() override { set_thread_count(before_); }

 private:
  int before_ = 1;
};

TEST_P(Interrupt, StopsBetweenItemsAndLeavesNoItemRunning) {
  std::atomic<int> begun{0}, ended{0};
  {
    const InterruptScope scope([] { throw Stop(); });
    EXPECT_THROW(parallel_for(100000,
                              [&](std::int64_t, int) {
                                begun.fetch_add(1);
                                rest();
                                ended.fetch_add(1);
                              }),
                 Stop);
  }
  EXPECT_GT(begun.load(), 0);
  EXPECT_LT(begun.load(), 100000);
  EXPECT_EQ(begun.load(), ended.load());
  std::atomic<int> total{0};
  parallel_for(1000, [&](std::int64_t, int) { total.fetch_add(1); });
  EXPECT_EQ(total.load(), 1000);
}

TEST_P(Interrupt, ACheckThatThrowsNothingChangesNothing) {
  int asked = 0;
  std::atomic<int> total{0};
  const InterruptScope scope([&] { ++asked; });
  int calls = 0;
  while (asked == 0) {  // on a loaded machine the other threads may do nearly all items of a call
    parallel_for(40, [&](std::int64_t, int) {
      rest();
      total.fetch_add(1);
    });
    ++calls;
  }
  EXPECT_EQ(total.load(), 40 * calls);
}

TEST_P(Interrupt, TheCheckMayCallTheLibrary) {
  int asked = 0;
  const InterruptScope scope([&] {
    ++asked;
    const Tensor x = random_tensor(DType::f32, {1, 2, 300, 16}, 1);
    EXPECT_EQ(attention(x, x, x).out.shape(), x.shape());
    if (asked == 2) throw Stop();
  });
  EXPECT_THROW(parallel_for(100000, [](std::int64_t, int) { rest(); }), Stop);
}

// The check is due 100 ms after the first look, and then again after another 100 ms.
TEST_P(Interrupt, TheCheckIsDueAfterATenthOfASecond) {
  using Clock = std::chrono::steady_clock;
  std::vector<Clock::time_point> asked;
  const InterruptScope scope([&] { asked.push_back(Clock::now()); });
  const Clock::time_point begun = Clock::now();
  while (asked.size() < 3) check_interrupt();
  EXPECT_GE(asked[0] - begun, std::chrono::milliseconds(100));
  EXPECT_GE(asked[1] - asked[0], std::chrono::milliseconds(100));
  EXPECT_GE(asked[2] - asked[1], std::chrono::milliseconds(100));
}

// Neither in the check itself nor where an empty check hides the outer ones.
TEST(InterruptScopes, NestAndComeBack) {
  EXPECT_FALSE(can_be_interrupted());
  bool inside = true;
  {
    const InterruptScope outer([&] { inside = can_be_interrupted(); });
    EXPECT_TRUE(can_be_interrupted());
    {
      const InterruptScope none(nullptr);
      EXPECT_FALSE(can_be_interrupted());
    }
    EXPECT_TRUE(can_be_interrupted());
    {
      const Uninterrupted whole;
      EXPECT_FALSE(can_be_interrupted());
    }
    EXPECT_TRUE(can_be_interrupted());
    while (inside) check_interrupt();
    EXPECT_TRUE(can_be_interrupted());
  }
  EXPECT_FALSE(can_be_interrupted());
}

TEST_P(Interrupt, OnlyTheThreadThatHasTheScopeIsAsked) {
  const InterruptScope scope([] { throw Stop(); });
  std::atomic<int> total{0};
  std::thread other([&] {
    parallel_for(20, [&](std::int64_t, int) {
      rest();
      total.fetch_add(1);
    });
  });
  other.join();
  EXPECT_EQ(total.load(), 20);
}

TEST_P(Interrupt, TheYoungestScopeCounts) {
  const InterruptScope outer([] { throw Stop(); });
  {
    const InterruptScope inner([] {});
    parallel_for(10, [](std::int64_t, int) { rest(); });
    parallel_for(10, [](std::int64_t, int) { rest(); });
  }
  EXPECT_THROW(parallel_for(100000, [](std::int64_t, int) { rest(); }), Stop);
}

TEST_P(Interrupt, WhatMustBeWholeIsNotAsked) {
  const InterruptScope scope([] { throw Stop(); });
  const Uninterrupted whole;
  std::atomic<int> total{0};
  parallel_for(20, [&](std::int64_t, int) {
    rest();
    total.fetch_add(1);
  });
  EXPECT_EQ(total.load(), 20);
}

// Every long call: with a check that throws once it is asked, repeated until it is, and afterwards the same bits.
TEST_P(Interrupt, LongCallsOfTheLibraryStop) {
  const Tensor x = random_tensor(DType::f32, {1, 64, 512, 32}, 1), wide = random_tensor(DType::f64, {1, 2, 256, 16}, 2);
  const AttentionResult forward = attention(x, x, x, {}, {.lse = true});
  const Tensor matrix = random_tensor(DType::f32, {1, 1, 32, 32}, 3);
  Tensor out(DType::f32, x.shape()), lse(DType::f32, {1, 64, 512, 1});
  const std::vector<std::pair<const char*, std::function<void()>>> calls = {
      {"attention", [&] { attention(x, x, x, out); }},
      {"attention_backward", [&] { attention_backward(x, x, x, x, forward.out, forward.lse); }},
      {"attention in f64", [&] { attention(wide, wide, wide); }},
      {"linear", [&] { linear(x, matrix, std::nullopt, out); }},
      {"linear_attention", [&] { linear_attention(x, x, x, out); }},
      {"reformer", [&] { reformer(x, x, out); }},
      {"softmax", [&] { softmax(x, out); }},
  };
  for (const auto& [name, call] : calls) {
    const InterruptScope scope([] { throw Stop(); });
    bool stopped = false;
    for (int repeat = 0; repeat < 100000 && !stopped; ++repeat) {
      try {
        call();
      } catch (const Stop&) {
        stopped = true;
      }
    }
    EXPECT_TRUE(stopped) << name;
  }
  const AttentionResult again = attention(x, x, x, {}, {.lse = true});
  for (std::int64_t n = 0; n < again.out.size(); ++n)
    ASSERT_EQ(again.out.data<float>()[n], forward.out.data<float>()[n]);
}

INSTANTIATE_TEST_SUITE_P(Counts, Interrupt, ::testing::Values(1, 2, 5));

}  // namespace
}  // namespace attend::test
