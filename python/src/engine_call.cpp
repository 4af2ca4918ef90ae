// What surrounds a call of the engine that may take long: no GIL, Ctrl-C is heard, and the end of Python is survived.
#include "engine_call.hpp"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <stdexcept>
#include <thread>

namespace attend::python {
namespace {

using namespace std::chrono_literals;

constexpr auto kLongestWait = 2s;  // at exit, for calls that do not look whether they are to stop

// Who may still take the GIL. Never freed: threads use it while the process ends.
struct Exit {
  std::mutex mutex;
  std::condition_variable changed;
  std::int64_t calls = 0;  // GilReleases that live, but those of threads that sleep
  bool begun = false;
  std::thread::id by;  // the thread that finalizes the interpreter keeps the GIL's use
};
Exit& g_exit = *new Exit;
thread_local std::int64_t calls_here = 0;  // of g_exit.calls, this thread's

bool may_take_gil() {  // with the mutex held
  return !g_exit.begun || g_exit.by == std::this_thread::get_id();
}

void count_call(std::int64_t by) {
  const std::lock_guard lock(g_exit.mutex);
  g_exit.calls += by, calls_here += by;
  g_exit.changed.notify_all();
}

[[noreturn]] void sleep_for_ever() {
  for (;;) ::pause();
}

// For a thread in a call that is about to return to Python.
void sleep_if_exiting() {
  {
    const std::lock_guard lock(g_exit.mutex);
    if (may_take_gil()) return;
    g_exit.calls -= calls_here;
    g_exit.changed.notify_all();
  }
  sleep_for_ever();
}

void stop_if_exiting() {
  const std::lock_guard lock(g_exit.mutex);
  if (!may_take_gil()) throw std::runtime_error("the call was stopped: Python is exiting");
}

// From here on calls stop. Those that have passed the check take the GIL and leave before this returns.
void begin_exit() {
  PyThreadState* state = PyEval_SaveThread();
  {
    std::unique_lock lock(g_exit.mutex);
    g_exit.begun = true, g_exit.by = std::this_thread::get_id();
    g_exit.changed.wait_for(lock, kLongestWait, [] { return g_exit.calls == calls_here; });
  }
  PyEval_RestoreThread(state);
}

// A forked child has only the thread that forked.
void forget_other_threads() {
  new (&g_exit.mutex) std::mutex;
  new (&g_exit.changed) std::condition_variable;
  g_exit.calls = calls_here;
}

// Python runs signal handlers on its main thread alone: the others need not ask, and wait for the GIL.
bool on_main_thread() {
  return getpid() == static_cast<pid_t>(syscall(SYS_gettid));
}

}  // namespace

GilRelease::GilRelease() : state_(PyEval_SaveThread()) {
  count_call(1);
}

GilRelease::~GilRelease() {
  sleep_if_exiting();
  PyEval_RestoreThread(state_);
  count_call(-1);
}

GilAcquire::GilAcquire() {
  stop_if_exiting();
  state_ = PyGILState_Ensure();
}

GilAcquire::~GilAcquire() {
  PyGILState_Release(state_);
}

void register_exit() {
  static_cast<void>(pthread_atfork(nullptr, nullptr, forget_other_threads));
  nb::module_::import_("atexit").attr("register")(nb::cpp_function(begin_exit));
}

void check_signals() {
  stop_if_exiting();
  if (!on_main_thread()) return;
  const GilAcquire acquire;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

EngineCall::EngineCall() : interrupts_(check_signals) {}

}  // namespace attend::python
