// Working memory of a call. What a call frees its thread keeps for the next one, up to 64 MiB: a shape seen before
// allocates nothing.
#pragma once

#include <cstdint>

#include "base/checked.hpp"
#include "base/export.hpp"
#include "base/threads.hpp"

namespace attend {

// An aligned piece for each worker, taken before the work starts.
class ATTEND_FOR_RING Scratch {
 public:
  // bytes_each for every worker a parallel_for started now can have.
  explicit Scratch(std::int64_t bytes_each) : Scratch(bytes_each, threads()) {}
  Scratch(std::int64_t bytes_each, int workers);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  int workers() const { return workers_; }
  void* of(int worker) const { return memory_ + worker * each_; }

 private:
  int workers_;
  std::int64_t each_, bytes_;
  char* memory_;
};

// An array for the length of a call. Not initialised.
template <class T>
class Buffer {
 public:
  explicit Buffer(std::int64_t count) : scratch_(checked_product("buffer", {count, std::int64_t{sizeof(T)}}), 1) {}
  T* data() const { return static_cast<T*>(scratch_.of(0)); }
  T& operator[](std::int64_t i) const { return data()[i]; }

 private:
  Scratch scratch_;
};

}  // namespace attend
