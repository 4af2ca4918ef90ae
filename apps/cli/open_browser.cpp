// Starts xdg-open.
#include "open_browser.hpp"

#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

namespace attend::cli {

void open_browser(const std::string& url) {
  if (isatty(STDOUT_FILENO) == 0) return;
  if (std::getenv("DISPLAY") == nullptr && std::getenv("WAYLAND_DISPLAY") == nullptr) return;
  // A child of a child: nobody waits for the browser.
  const pid_t child = fork();
  if (child == 0) {
    if (fork() == 0) {
      (void)syscall(SYS_close_range, 3U, ~0U, 0U);  // it outlives us, and must not hold our port
      execlp("xdg-open", "xdg-open", url.c_str(), static_cast<char*>(nullptr));
      _exit(1);
    }
    _exit(0);
  }
  if (child > 0) (void)waitpid(child, nullptr, 0);
}

}  // namespace attend::cli
