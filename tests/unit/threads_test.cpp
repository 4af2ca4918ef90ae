// The thread pool: every item once, in rising order of handing out, whatever the number of threads and callers.
#include "base/threads.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

namespace attend {
namespace {

class Threads : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    before_ = thread_count();
    set_thread_count(GetParam());
  }
  void TearDown() override { set_thread_count(before_); }

 private:
  int before_ = 1;
};

TEST_P(Threads, RunsEveryItemOnce) {
  for (int repeat = 0; repeat < 200; ++repeat) {
    std::vector<std::atomic<int>> seen(97);
    std::atomic<bool> worker_in_range{true};
    parallel_for(97, [&](std::int64_t item, int worker) {
      seen[static_cast<std::size_t>(item)].fetch_add(1);
      if (worker < 0 || worker >= GetParam()) worker_in_range = false;
    });
    for (const auto& count : seen) EXPECT_EQ(count.load(), 1);
    EXPECT_TRUE(worker_in_range);
  }
}

TEST_P(Threads, NestedCallsRunInline) {
  std::atomic<int> inner{0};
  parallel_for(8, [&](std::int64_t, int) { parallel_for(5, [&](std::int64_t, int) { inner.fetch_add(1); }); });
  EXPECT_EQ(inner.load(), 40);
}

TEST_P(Threads, ManyCallersAtOnce) {
  std::atomic<int> total{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller)
    callers.emplace_back([&] {
      for (int repeat = 0; repeat < 50; ++repeat) parallel_for(10, [&](std::int64_t, int) { total.fetch_add(1); });
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(total.load(), 4 * 50 * 10);
}

TEST_P(Threads, AForkedChildCanWork) {
  parallel_for(10, [](std::int64_t, int) {});
  const pid_t child = fork();
  if (child == 0) {
    std::atomic<int> total{0};
    parallel_for(100, [&](std::int64_t, int) { total.fetch_add(1); });
    _exit(total.load() == 100 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

INSTANTIATE_TEST_SUITE_P(Counts, Threads, ::testing::Values(1, 2, 3, 7, 16));

TEST(ThreadCount, FewerPiecesThanThreadsRunInline) {
  const int before = thread_count();
  set_thread_count(4);
  parallel_for(10, 2, [](std::int64_t, int worker) { EXPECT_EQ(worker, 0); });
  set_thread_count(before);
}

}  // namespace
}  // namespace attend
