// The thread pool: workers spin for a moment after each job, then sleep.
#include "base/threads.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/check.hpp"
#include "base/cpu.hpp"
#include "base/interrupt.hpp"

namespace attend {
namespace {

constexpr int kSpins = 4000;  // about 50 us: longer than the gap between two kernels, shorter than anyone notices

struct Job {
  std::int64_t items = 0;
  void (*run)(void*, std::int64_t, int) = nullptr;
  void* context = nullptr;
  std::atomic<std::int64_t> next{0};
  std::atomic<bool> stops{false};
  std::mutex failing{};
  std::exception_ptr reason{};       // what the caller's InterruptScope threw, or an item
  std::int64_t failed_item = kNone;  // that threw it; `items` for the InterruptScope

  void work(int worker);
  // Hands out no more items; those that are running end: an item waits for earlier ones alone, and those have been
  // handed out. Of several that throw, the first item's exception is kept: it has been handed out by then, so which one
  // that is does not depend on the threads.
  void stop(std::int64_t item) {
    const std::lock_guard lock(failing);
    if (item < failed_item) reason = std::current_exception(), failed_item = item;
    stops.store(true, std::memory_order_relaxed);
    next.store(items, std::memory_order_relaxed);
  }
  // The caller alone.
  void check() {
    if (stops.load(std::memory_order_relaxed)) return;
    try {
      check_interrupt();
    } catch (...) {
      stop(items);
    }
  }

  static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
};

thread_local bool inside_job = false;       // of the pool: no other may be started
thread_local const Job* running = nullptr;  // whose item this thread works on
thread_local Job* asking = nullptr;         // the same, on the thread that called and may be asked to stop

void Job::work(int worker) {
  running = this;
  for (std::int64_t item; (item = next.fetch_add(1, std::memory_order_relaxed)) < items;) {
    try {
      run(context, item, worker);
    } catch (...) {
      stop(item);
    }
    if (asking == this) check();
  }
  running = nullptr;
}

// A job of the calling thread: the one that is asked, unless it runs inside another job's item.
class Leading {
 public:
  explicit Leading(Job& job) : outer_(running) {
    if (outer_ == nullptr && can_be_interrupted()) asking = &job;
  }
  ~Leading() {
    running = outer_;
    if (outer_ == nullptr) asking = nullptr;
  }
  Leading(const Leading&) = delete;
  Leading& operator=(const Leading&) = delete;

 private:
  const Job* outer_;
};

class Pool {
 public:
  explicit Pool(int count) {
    try {
      for (int worker = 1; worker < count; ++worker) workers_.emplace_back([this, worker] { loop(worker); });
    } catch (...) {
      stop();
      throw;
    }
  }
  ~Pool() { stop(); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int count() const { return static_cast<int>(workers_.size()) + 1; }

  // A worker that has not woken by the time the items run out is not waited for.
  void run(Job& job) {
    {
      const std::lock_guard lock(mutex_);
      job_ = &job;
      generation_.fetch_add(1, std::memory_order_release);
    }
    if (sleepers_.load() > 0) wake_.notify_all();
    inside_job = true;
    job.work(0);
    inside_job = false;
    {
      const std::lock_guard lock(mutex_);
      job_ = nullptr;
    }
    for (int spin = 0; active_.load(std::memory_order_acquire) > 0; ++spin) spin_wait(spin);
  }

 private:
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  void loop(int worker) {
    inside_job = true;
    for (std::uint64_t seen = 0;;) {
      wait_for_change(seen);
      Job* job;
      {
        const std::lock_guard lock(mutex_);
        seen = generation_.load(std::memory_order_relaxed);
        if (stopping_) return;
        job = job_;
        if (job == nullptr) continue;
        active_.fetch_add(1, std::memory_order_relaxed);
      }
      job->work(worker);
      active_.fetch_sub(1, std::memory_order_release);
    }
  }

  void wait_for_change(std::uint64_t seen) {
    for (int spin = 0; spin < kSpins; ++spin) {
      if (generation_.load(std::memory_order_acquire) != seen) return;
      spin_wait(spin);
    }
    std::unique_lock lock(mutex_);
    sleepers_.fetch_add(1);
    wake_.wait(lock, [&] { return generation_.load(std::memory_order_relaxed) != seen; });
    sleepers_.fetch_sub(1);
  }

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<std::uint64_t> generation_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<int> active_{0};  // workers inside the job
  Job* job_ = nullptr;
  bool stopping_ = false;
};

int default_count() {
  const char* text = std::getenv("ATTEND_THREADS");
  if (text == nullptr || *text == '\0') return usable_cpus();
  int count = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, count);
  if (error != std::errc() || stop != end || count < 1 || count > kMaxThreads)
    fail("ATTEND_THREADS",
         "is \"" + std::string(text) + "\", expected a whole number from 1 to " + std::to_string(kMaxThreads));
  return count;
}

std::atomic<int> wanted{0};  // 0: not yet asked for
std::mutex pool_mutex;       // held by the one call that has the pool
Pool* pool = nullptr;        // never freed at exit: a worker may still be spinning

// A forked child has the pool's memory but none of its threads: it must make a new one.
void forget_pool() {
  pool = nullptr;
  new (&pool_mutex) std::mutex;
}

Pool* pool_of(int count) {
  static const int registered = pthread_atfork(nullptr, nullptr, forget_pool);
  static_cast<void>(registered);
  if (pool != nullptr && pool->count() == count) return pool;
  delete pool;
  pool = nullptr;
  try {
    pool = new Pool(count);
  } catch (const std::exception&) {
    // No threads to be had: the caller does the work alone, with the same result.
  }
  return pool;
}

}  // namespace

void spin_wait(int spin) {
  if (spin % 64 == 63) {
    sched_yield();  // more threads than cores: let the one we wait for run
  } else {
    cpu_relax();
  }
}

int thread_count() {
  int count = wanted.load(std::memory_order_relaxed);
  if (count == 0) {
    count = default_count();
    wanted.store(count, std::memory_order_relaxed);
  }
  return count;
}

void set_thread_count(int count) {
  wanted.store(count, std::memory_order_relaxed);
}

bool job_stops() {
  if (asking != nullptr) asking->check();
  return running != nullptr && running->stops.load(std::memory_order_relaxed);
}

void stop_if_asked() {
  if (running == nullptr) check_interrupt();
}

void parallel_items(std::int64_t items, int max_workers, void (*run)(void*, std::int64_t, int), void* context) {
  if (run == nullptr) fail("parallel_items", "run is null, expected a function");
  const int count = thread_count();
  Job job;
  job.items = items;
  job.run = run;
  job.context = context;
  {
    const Leading leading(job);
    std::unique_lock lock(pool_mutex, std::defer_lock);
    const bool alone = items < 2 || count == 1 || count > max_workers || inside_job || !lock.try_lock();
    if (Pool* workers = alone ? nullptr : pool_of(count)) {
      workers->run(job);
    } else {
      job.work(0);
    }
  }
  if (job.reason) std::rethrow_exception(job.reason);
}

}  // namespace attend
