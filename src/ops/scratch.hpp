// Working memory of a call: one aligned piece for each worker, taken before the work starts.
#pragma once

#include <cstdint>
#include <memory>
#include <new>

#include "base/checked.hpp"
#include "base/threads.hpp"

namespace attend {

class Scratch {
 public:
  // bytes_each for every worker a parallel_for started now can have.
  explicit Scratch(std::int64_t bytes_each) : Scratch(bytes_each, thread_count()) {}
  Scratch(std::int64_t bytes_each, int workers)
      : workers_(workers),
        each_((bytes_each + kAlign - 1) / kAlign * kAlign),
        memory_(static_cast<char*>(
            ::operator new(static_cast<std::size_t>(checked_product("scratch", {each_, workers}) + kAlign),
                           std::align_val_t{kAlign}))) {}

  int workers() const { return workers_; }
  void* of(int worker) const { return memory_.get() + worker * each_; }

 private:
  static constexpr std::int64_t kAlign = 64;
  struct Free {
    void operator()(char* p) const noexcept { ::operator delete(p, std::align_val_t{kAlign}); }
  };
  int workers_;
  std::int64_t each_;
  std::unique_ptr<char, Free> memory_;
};

}  // namespace attend
