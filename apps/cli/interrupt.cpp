// Catches signals in a flag.
#include "interrupt.hpp"

#include <cstddef>
#include <cstdio>
#include <iterator>

#include "screen.hpp"

namespace attend::cli {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
volatile std::sig_atomic_t g_signal = 0;

extern "C" void note_signal(int number) {
  g_signal = number;
}

}  // namespace

InterruptWatch::InterruptWatch() {
  g_signal = 0;
  struct sigaction action{};
  action.sa_handler = note_signal;
  action.sa_flags = SA_RESTART;  // whoever waits looks at the flag himself; a write cut short would count as failed
  for (std::size_t n = 0; n < std::size(kSignals); ++n) {
    ::sigaction(kSignals[n], nullptr, &old_[n]);
    // Ignored by whoever started us (nohup): it stays so.
    if (old_[n].sa_handler != SIG_IGN) ::sigaction(kSignals[n], &action, nullptr);
  }
}

InterruptWatch::~InterruptWatch() {
  for (std::size_t n = 0; n < std::size(kSignals); ++n) ::sigaction(kSignals[n], &old_[n], nullptr);
}

void check_interrupted() {
  if (g_signal != 0) throw Interrupted(g_signal);
}

int run_stoppable(const std::string& who, const std::function<int()>& job) {
  int signal = 0;
  std::string left;
  try {
    const InterruptWatch watch;
    return job();
  } catch (const Interrupted& interrupted) {
    signal = interrupted.signal, left = interrupted.left;
  }
  tell(who + ": stopped; " + left);
  (void)std::fflush(stdout);
  (void)std::raise(signal);
  return 1;
}

}  // namespace attend::cli
