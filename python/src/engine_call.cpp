// What surrounds a call of the engine that may take long: no GIL, and Ctrl-C is heard.
#include "engine_call.hpp"

#include <sys/syscall.h>
#include <unistd.h>

namespace attend::python {
namespace {

// Python runs signal handlers on its main thread alone: the others need not ask, and wait for the GIL.
bool on_main_thread() {
  return getpid() == static_cast<pid_t>(syscall(SYS_gettid));
}

}  // namespace

void check_signals() {
  if (!on_main_thread()) return;
  const nb::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

EngineCall::EngineCall() : interrupts_(check_signals) {}

}  // namespace attend::python
