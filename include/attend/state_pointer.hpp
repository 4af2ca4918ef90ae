// Where the library's classes keep their state. An object that was moved from has none: every further use throws.
#pragma once

#include <memory>
#include <utility>

#include "attend/export.h"

namespace attend {

[[noreturn]] ATTEND_API void throw_moved_from(const char* type);  // InvalidArgument

// Pointer: std::unique_ptr<State> or std::shared_ptr<State>, never null when it is given.
template <class Pointer>
class StatePointer {
 public:
  using State = typename Pointer::element_type;

  StatePointer(const char* type, Pointer state) : type_(type), state_(std::move(state)) {}

  State* operator->() const { return pointer().get(); }
  State& operator*() const { return *pointer(); }
  const Pointer& pointer() const {
    if (state_ == nullptr) throw_moved_from(type_);
    return state_;
  }

 private:
  const char* type_;  // the class, for the message
  Pointer state_;
};

}  // namespace attend
