// What surrounds a call of the engine that may take long: no GIL, Ctrl-C is heard, and the end of Python is survived.
#pragma once

#include "bindings.hpp"

namespace attend::python {

// Python ends a daemon thread that takes the GIL once the interpreter finalizes (before 3.14: by pthread_exit, which
// cannot pass through C++ and aborts). So the thread of a call that is running at exit never gets back to Python: its
// call is stopped at the next check, and it sleeps in ~GilRelease until the process has ended.

// Releases the GIL as long as it lives.
class GilRelease {
 public:
  GilRelease();
  ~GilRelease();
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  PyThreadState* state_;
};

// Takes the GIL for a callback, on a thread that has none. Throws if Python is exiting.
class GilAcquire {
 public:
  GilAcquire();
  ~GilAcquire();
  GilAcquire(const GilAcquire&) = delete;
  GilAcquire& operator=(const GilAcquire&) = delete;

 private:
  PyGILState_STATE state_;
};

// Has Python call what waits, at its exit, for the threads that are in calls.
void register_exit();

// Runs Python's signal handlers, on its main thread; throws what one raises. For threads without the GIL. Throws on
// every other thread once Python is exiting.
void check_signals();

// Releases the GIL. On Python's main thread the call looks at signals now and then: what a handler raises (Ctrl-C:
// KeyboardInterrupt) ends it.
class EngineCall {
 public:
  EngineCall();

 private:
  GilRelease release_;
  InterruptScope interrupts_;
};

}  // namespace attend::python
