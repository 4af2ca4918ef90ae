// What this program's own operator new has given out, counted in c_abi_memory_test.cpp.
#pragma once

#include <atomic>
#include <cstdint>

namespace attend::test {

extern std::atomic<std::int64_t> live_bytes;
extern std::atomic<std::int64_t> peak_bytes;

// The most that was live at once during f(), beyond what was live before.
template <class F>
std::int64_t peak_of(const F& f) {
  const std::int64_t before = live_bytes.load();
  peak_bytes.store(before);
  f();
  return peak_bytes.load() - before;
}

}  // namespace attend::test
