// The handler of SIGBUS: only calls that a handler may make.
#include "truncated_files.hpp"

#include <unistd.h>

#include <csignal>
#include <cstring>

#include "command.hpp"
#include "io/mapped_file.hpp"

namespace attend::cli {
namespace {

void say(const char* text) {
  for (std::size_t left = std::strlen(text); left > 0;) {
    const ssize_t written = ::write(STDERR_FILENO, text, left);
    if (written <= 0) return;
    text += written;
    left -= static_cast<std::size_t>(written);
  }
}

extern "C" void end_with_a_sentence(int number, siginfo_t* info, void*) {
  const char* path = io::mapped_path(info->si_addr);
  if (path == nullptr) {  // not ours: back to what the system does, which the same fault then meets
    (void)std::signal(number, SIG_DFL);
    return;
  }
  say("\nattend: ");
  say(path);
  say(": it became shorter while it was read, or its disk failed. See that nothing writes to it, and try again.\n");
  ::_exit(kFailure);
}

}  // namespace

void explain_truncated_files() {
  struct sigaction action{};
  action.sa_sigaction = end_with_a_sentence;
  action.sa_flags = SA_SIGINFO;
  (void)::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace attend::cli
