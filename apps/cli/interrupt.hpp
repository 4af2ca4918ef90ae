// Ctrl-C and its relatives as an exception, so that what was begun is cleaned up.
#pragma once

#include <csignal>
#include <exception>
#include <functional>
#include <string>

namespace attend::cli {

struct Interrupted : std::exception {
  explicit Interrupted(int number) : signal(number) {}
  const char* what() const noexcept override { return "stopped"; }
  int signal;
  std::string left = "nothing was changed";  // what the user finds then
};

// As long as it lives, SIGINT, SIGTERM, SIGHUP and SIGUSR1 (which mpirun hands on to its processes) only set a flag;
// before and after it they do what they did. One at a time.
class InterruptWatch {
 public:
  InterruptWatch();
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

 private:
  struct sigaction old_[4]{};
};

// Throws Interrupted if one of them came.
void check_interrupted();

// Runs `job` under a watch. When it was stopped and has cleaned up, says so and ends as the signal would have ended it:
// a shell sees that it was stopped.
int run_stoppable(const std::string& who, const std::function<int()>& job);

}  // namespace attend::cli
