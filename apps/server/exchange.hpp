// What one request and the thread that answers it share.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <mutex>
#include <utility>

#include "apps/server/memory_budget.hpp"

namespace attend::server {

class Exchange {
 public:
  std::atomic<std::size_t> unread{0};  // bytes of a growing answer that the client has not taken
  MemoryShare body{};                  // of the request's body, which may be kept until the answer

  bool gone() const { return gone_.load(); }

  // At once if the client has left; never once it has its answer, which may be there before this is said.
  void when_gone(std::function<void()> call) {
    {
      const std::lock_guard lock(mutex_);
      if (answered_) return;
      if (!gone_.load()) {
        when_gone_ = std::move(call);
        return;
      }
    }
    call();
  }
  void leave() {
    std::function<void()> call;
    {
      const std::lock_guard lock(mutex_);
      if (gone_.exchange(true)) return;
      call = std::move(when_gone_);
    }
    if (call) call();
  }
  // What was to be called may own the reply, which owns this: it is let go.
  void answered() {
    std::function<void()> call;
    {
      const std::lock_guard lock(mutex_);
      answered_ = true;
      call.swap(when_gone_);
    }
  }

 private:
  std::atomic<bool> gone_{false};
  std::mutex mutex_;
  std::function<void()> when_gone_;
  bool answered_ = false;
};

}  // namespace attend::server
