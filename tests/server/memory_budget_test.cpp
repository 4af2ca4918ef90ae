// A budget is never exceeded, and a share gives back all that it took.
#include "apps/server/memory_budget.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <thread>
#include <vector>

namespace attend::server {
namespace {

TEST(MemoryBudget, ReservesUpToTheLastByte) {
  MemoryBudget budget(100);
  EXPECT_TRUE(budget.reserve(60));
  EXPECT_FALSE(budget.reserve(41));
  EXPECT_EQ(budget.reserved(), 60);
  EXPECT_TRUE(budget.reserve(40));
  EXPECT_FALSE(budget.reserve(1));
  EXPECT_FALSE(budget.reserve(std::numeric_limits<std::int64_t>::max()));
  budget.release(100);
  EXPECT_EQ(budget.reserved(), 0);
}

TEST(MemoryBudget, ASharesSizeFollowsItsOwner) {
  const auto budget = std::make_shared<MemoryBudget>(100);
  MemoryShare one(budget);
  EXPECT_TRUE(one.resize(80));
  MemoryShare other(budget);
  EXPECT_FALSE(other.resize(21));
  EXPECT_EQ(other.bytes(), 0);
  EXPECT_TRUE(one.resize(30));
  EXPECT_TRUE(other.resize(70));
  EXPECT_FALSE(one.resize(31));
  EXPECT_EQ(one.bytes(), 30);
  other = std::move(one);
  EXPECT_EQ(budget->reserved(), 30);
  {
    const MemoryShare last = std::move(other);
    EXPECT_EQ(budget->reserved(), 30);
  }
  EXPECT_EQ(budget->reserved(), 0);
  EXPECT_TRUE(MemoryShare().resize(std::int64_t{1} << 60));
}

TEST(MemoryBudget, ThreadsTogetherStayWithinIt) {
  MemoryBudget budget(7);
  std::atomic<bool> exceeded{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int n = 0; n < 2000; ++n) {
        if (!budget.reserve(3)) continue;
        if (budget.reserved() > budget.limit()) exceeded = true;
        budget.release(3);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(exceeded);
  EXPECT_EQ(budget.reserved(), 0);
}

}  // namespace
}  // namespace attend::server
