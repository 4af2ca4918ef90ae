// Stopping a call that takes long.
#pragma once

#include <chrono>
#include <functional>
#include <optional>

#include "attend/export.h"

namespace attend {

// While it lives, calls of this thread run `check` ten times a second: on this thread, between two items of their work.
// To stop a call, `check` throws: the items that are running end, the workers come to rest, and the call throws the
// same exception. What the call was to write is then of no use; its inputs and caches are as they were, and the library
// is ready for the next call. Of several on one thread the youngest counts. Calls shorter than a tenth of a second are
// not asked; `check` may call the library.
class ATTEND_API InterruptScope {
 public:
  explicit InterruptScope(std::function<void()> check);
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

 private:
  friend void check_interrupt();
  std::function<void()> check_;
  std::optional<std::chrono::steady_clock::time_point> next_{};
  InterruptScope* outer_;
};

}  // namespace attend
