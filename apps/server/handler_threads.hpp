// A few threads that run handlers, in the order they were posted; large requests take half of the threads at most, so
// that small ones do not wait for them.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace attend::server {

class HandlerThreads {
 public:
  explicit HandlerThreads(int count) : max_large_(std::max(1, count / 2)) {
    for (int i = 0; i < count; ++i) threads_.emplace_back([this] { loop(); });
  }
  ~HandlerThreads() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  HandlerThreads(const HandlerThreads&) = delete;
  HandlerThreads& operator=(const HandlerThreads&) = delete;

  void post(std::function<void()> job, bool large) {
    {
      const std::lock_guard lock(mutex_);
      (large ? large_jobs_ : jobs_).push_back(std::move(job));
    }
    wake_.notify_one();
  }

 private:
  void loop() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return stopping_ || !jobs_.empty() || may_run_large(); });
      if (stopping_) return;
      const bool large = jobs_.empty();
      run_first(large ? large_jobs_ : jobs_, large ? 1 : 0, lock);
    }
  }
  bool may_run_large() const { return !large_jobs_.empty() && running_large_ < max_large_; }
  // Without the lock; the job is destroyed before the lock is taken again.
  void run_first(std::deque<std::function<void()>>& jobs, int large, std::unique_lock<std::mutex>& lock) {
    running_large_ += large;
    {
      const std::function<void()> job = std::move(jobs.front());
      jobs.pop_front();
      lock.unlock();
      job();
    }
    lock.lock();
    running_large_ -= large;
    if (large > 0) wake_.notify_one();
  }

  const int max_large_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> jobs_, large_jobs_;
  int running_large_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace attend::server
