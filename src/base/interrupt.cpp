// Where long calls look whether somebody wants them to stop.
#include "base/interrupt.hpp"

#include <utility>

namespace attend {
namespace {

constexpr std::chrono::milliseconds kPause{100};

thread_local InterruptScope* youngest = nullptr;

}  // namespace

InterruptScope::InterruptScope(std::function<void()> check) : check_(std::move(check)), outer_(youngest) {
  youngest = check_ ? this : nullptr;
}

InterruptScope::~InterruptScope() {
  youngest = outer_;
}

bool can_be_interrupted() {
  return youngest != nullptr;
}

void check_interrupt() {
  InterruptScope* scope = youngest;
  if (scope == nullptr) return;
  const auto now = std::chrono::steady_clock::now();
  if (!scope->next_) scope->next_ = now + kPause;
  if (now < *scope->next_) return;
  const Uninterrupted alone;  // what the check calls is not asked again
  scope->check_();
  scope->next_ = std::chrono::steady_clock::now() + kPause;
}

Uninterrupted::Uninterrupted() : held_(std::exchange(youngest, nullptr)) {}
Uninterrupted::~Uninterrupted() {
  youngest = held_;
}

}  // namespace attend
