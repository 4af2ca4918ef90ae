// What surrounds a call of the engine that may take long: no GIL, and Ctrl-C is heard.
#pragma once

#include "bindings.hpp"

namespace attend::python {

// Runs Python's signal handlers, on its main thread; throws what one raises. For threads without the GIL.
void check_signals();

// Releases the GIL. On Python's main thread the call looks at signals now and then: what a handler raises (Ctrl-C:
// KeyboardInterrupt) ends it.
class EngineCall {
 public:
  EngineCall();

 private:
  nb::gil_scoped_release release_;
  InterruptScope interrupts_;
};

}  // namespace attend::python
