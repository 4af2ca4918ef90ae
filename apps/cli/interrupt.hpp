// Ctrl-C and its relatives as an exception, so that what was begun is cleaned up.
#pragma once

#include <csignal>
#include <exception>

namespace attend::cli {

struct Interrupted : std::exception {
  explicit Interrupted(int number) : signal(number) {}
  const char* what() const noexcept override { return "stopped"; }
  int signal;
};

// As long as it lives, SIGINT, SIGTERM and SIGHUP only set a flag; before and after it they do what they did. One at a
// time.
class InterruptWatch {
 public:
  InterruptWatch();
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

 private:
  struct sigaction old_[3]{};
};

// Throws Interrupted if one of them came.
void check_interrupted();

}  // namespace attend::cli
