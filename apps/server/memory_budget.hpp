// One limit on the memory that clients make the process hold beyond weights and KV caches: request bodies, unsent
// answers, and the explorer's runs share it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace attend::server {

// Thread-safe. `attend serve --memory` creates one, and passes it to the listener (ListenOptions::memory) and to the
// explorer (ExploreLimits::memory).
class MemoryBudget {
 public:
  explicit MemoryBudget(std::int64_t limit) : limit_(limit) {}

  // False, with nothing reserved, where `bytes` more would exceed the limit.
  bool reserve(std::int64_t bytes) noexcept {
    std::int64_t now = reserved_.load();
    do
      if (bytes > limit_ - now) return false;
    while (!reserved_.compare_exchange_weak(now, now + bytes));
    return true;
  }
  void release(std::int64_t bytes) noexcept { reserved_.fetch_sub(bytes); }

  std::int64_t limit() const { return limit_; }
  std::int64_t reserved() const { return reserved_.load(); }

 private:
  const std::int64_t limit_;
  std::atomic<std::int64_t> reserved_{0};
};

// Bytes of a budget that belong to one object, and are released with it; without a budget every size fits. For one
// thread at a time. A cache such as the explorer's runs holds a share for each entry, resizes it when the entry grows,
// and on false evicts an entry and tries again; with none left to evict it answers 503.
class MemoryShare {
 public:
  MemoryShare() = default;
  explicit MemoryShare(std::shared_ptr<MemoryBudget> budget) : budget_(std::move(budget)) {}
  ~MemoryShare() { clear(); }
  MemoryShare(MemoryShare&& other) noexcept
      : budget_(std::move(other.budget_)), bytes_(std::exchange(other.bytes_, 0)) {}
  MemoryShare& operator=(MemoryShare&& other) noexcept {
    if (this == &other) return *this;
    clear();
    budget_ = std::move(other.budget_);
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
  }

  std::int64_t bytes() const { return bytes_; }
  // False, with the share as it was, where the budget has no room for the difference. A smaller size always fits.
  bool resize(std::int64_t bytes) noexcept {
    const std::int64_t more = bytes - bytes_;
    if (budget_ && more > 0 && !budget_->reserve(more)) return false;
    if (budget_ && more < 0) budget_->release(-more);
    bytes_ = bytes;
    return true;
  }
  void clear() noexcept { (void)resize(0); }

 private:
  std::shared_ptr<MemoryBudget> budget_;
  std::int64_t bytes_ = 0;
};

}  // namespace attend::server
