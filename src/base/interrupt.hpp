// Where long calls look whether somebody wants them to stop.
#pragma once

#include "attend/interrupt.hpp"

namespace attend {

// Runs the check of this thread's InterruptScope when it is due: throws what the check throws.
void check_interrupt();
bool can_be_interrupted();  // there is one

// What must be done whole: a cache that is half written is of no use to anybody.
class Uninterrupted {
 public:
  Uninterrupted();
  ~Uninterrupted();
  Uninterrupted(const Uninterrupted&) = delete;
  Uninterrupted& operator=(const Uninterrupted&) = delete;

 private:
  InterruptScope* held_;
};

}  // namespace attend
