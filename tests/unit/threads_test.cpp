// The thread pool: every item once, in rising order of handing out, whatever the number of threads and callers.
#include "base/threads.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>
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
  std::atomic<int> inner{0}, elsewhere{0};
  parallel_for(8, [&](std::int64_t, int) {
    const std::thread::id self = std::this_thread::get_id();
    std::int64_t next = 0;
    parallel_for(5, [&](std::int64_t item, int worker) {
      inner.fetch_add(1);
      if (worker != 0 || item != next++ || std::this_thread::get_id() != self) elsewhere.fetch_add(1);
    });
  });
  EXPECT_EQ(inner.load(), 40);
  EXPECT_EQ(elsewhere.load(), 0);
}

// Each thread has one number, and its items come in rising order; the caller is worker 0.
TEST_P(Threads, ItemsRiseOnEveryThread) {
  const std::thread::id self = std::this_thread::get_id();
  for (int repeat = 0; repeat < 50; ++repeat) {
    std::vector<std::int64_t> last(static_cast<std::size_t>(GetParam()), -1);
    std::vector<std::thread::id> threads(last.size());
    std::atomic<int> wrong{0};
    parallel_for(200, [&](std::int64_t item, int worker) {
      const auto w = static_cast<std::size_t>(worker);
      const bool first = last[w] < 0;
      if (first) threads[w] = std::this_thread::get_id();
      if (item <= last[w] || threads[w] != std::this_thread::get_id()) wrong.fetch_add(1);
      last[w] = item;
    });
    EXPECT_EQ(wrong.load(), 0);
    EXPECT_EQ(*std::max_element(last.begin(), last.end()), 199);
    for (std::size_t w = 0; w < last.size(); ++w) {
      if (last[w] < 0) continue;
      EXPECT_EQ(threads[w] == self, w == 0) << w;
    }
  }
}

TEST_P(Threads, NoItemAndOneItem) {
  for (const std::int64_t items : {-1, 0}) parallel_for(items, [](std::int64_t, int) { ADD_FAILURE(); });
  int runs = 0;
  const std::thread::id self = std::this_thread::get_id();
  parallel_for(1, [&](std::int64_t item, int worker) {
    EXPECT_EQ(item, 0);
    EXPECT_EQ(worker, 0);
    EXPECT_EQ(std::this_thread::get_id(), self);
    ++runs;
  });
  EXPECT_EQ(runs, 1);
}

// While a call has the pool, a call of another thread does its own work and waits for nothing.
TEST_P(Threads, ASecondCallerWorksAlone) {
  std::atomic<bool> begun{false}, done{false};
  std::thread second([&] {
    while (!begun) std::this_thread::yield();
    const std::thread::id self = std::this_thread::get_id();
    std::int64_t next = 0;
    parallel_for(20, [&](std::int64_t item, int worker) {
      EXPECT_EQ(item, next++);
      EXPECT_EQ(worker, 0);
      EXPECT_EQ(std::this_thread::get_id(), self);
    });
    done = true;
  });
  parallel_for(2, [&](std::int64_t, int) {
    begun = true;
    while (!done) std::this_thread::yield();
  });
  second.join();
}

TEST_P(Threads, FewerThreadsThanBeforeAreFewer) {
  std::atomic<int> highest{0};
  const auto run = [&] {
    highest = 0;
    parallel_for(100, [&](std::int64_t, int worker) {
      for (int seen = highest; worker > seen && !highest.compare_exchange_weak(seen, worker);) {
      }
    });
    return highest.load();
  };
  EXPECT_LT(run(), GetParam());
  set_thread_count(2);
  EXPECT_LT(run(), 2);
  EXPECT_EQ(thread_count(), 2);
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

// The exception of the first item that throws, whichever thread was faster; no item runs when the call has ended.
TEST_P(Threads, AnItemMayThrow) {
  for (int repeat = 0; repeat < 100; ++repeat) {
    std::atomic<int> running{0};
    std::string text;
    try {
      parallel_for(64, [&](std::int64_t item, int) {
        running.fetch_add(1);
        if (item < 7) std::this_thread::yield();
        running.fetch_sub(1);
        if (item >= 5) throw std::runtime_error("item " + std::to_string(item));
      });
    } catch (const std::runtime_error& error) {
      text = error.what();
    }
    EXPECT_EQ(text, "item 5");
    EXPECT_EQ(running.load(), 0);
  }
  std::atomic<int> items{0};  // and the pool is ready for the next call
  parallel_for(64, [&](std::int64_t, int) { items.fetch_add(1); });
  EXPECT_EQ(items.load(), 64);
}

TEST_P(Threads, AnItemOfANestedCallMayThrow) {
  std::atomic<int> caught{0};
  const auto inner = [](std::int64_t item, int) {
    if (item == 3) throw 3;
  };
  parallel_for(6, [&](std::int64_t, int) {
    try {
      parallel_for(5, inner);
    } catch (int) {
      caught.fetch_add(1);
    }
  });
  EXPECT_EQ(caught.load(), 6);
  EXPECT_THROW(parallel_for(6, [&](std::int64_t, int) { parallel_for(5, inner); }), int);
}

INSTANTIATE_TEST_SUITE_P(Counts, Threads, ::testing::Values(1, 2, 3, 7, 16));

TEST(ThreadCount, FewerPiecesThanThreadsRunInline) {
  const int before = thread_count();
  set_thread_count(4);
  const std::thread::id self = std::this_thread::get_id();
  for (const int workers : {2, 3}) {
    int runs = 0;
    parallel_for(10, workers, [&](std::int64_t item, int worker) {
      EXPECT_EQ(worker, 0);
      EXPECT_EQ(item, runs++);
      EXPECT_EQ(std::this_thread::get_id(), self);
    });
    EXPECT_EQ(runs, 10);
  }
  // Each of four items waits until all have begun: with room for four workers they run at once.
  std::atomic<int> begun{0};
  parallel_for(4, 4, [&](std::int64_t, int) {
    begun.fetch_add(1);
    while (begun.load() < 4) std::this_thread::yield();
  });
  EXPECT_EQ(begun.load(), 4);
  set_thread_count(before);
}

}  // namespace
}  // namespace attend
