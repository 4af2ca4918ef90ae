// What takes long, on standard error: a bar where the amount is known, else a line that counts the seconds.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace attend::cli {

int columns_of_terminal();  // of standard error

// The line of a bar: label, bar, amount, rate, time left; at most `columns` wide. `total` 0: not known. `unit` is what
// is counted, null for bytes. Rates are per second; one of 0 is not shown.
std::string progress_line(const std::string& label, std::int64_t done, std::int64_t total, double rate, int columns,
                          const char* unit);

// Drawn from half a second on and ten times a second at most, and gone when it ends. Where standard error is no
// terminal a line is printed every ten seconds instead. For one thread.
class ProgressBar {
 public:
  // `begin`: what was done before, which the rate leaves out.
  ProgressBar(std::string label, std::int64_t total, const char* unit = nullptr, std::int64_t begin = 0);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void update(std::int64_t done);

 private:
  using Clock = std::chrono::steady_clock;
  void measure(std::int64_t done, Clock::time_point now);

  std::string label_;
  std::int64_t total_;
  const char* unit_;
  bool terminal_;
  bool drawn_ = false;
  double rate_ = 0;
  std::int64_t measured_ = 0;
  Clock::time_point measured_at_, next_;
};

// From one second on, and only on a terminal, a line on standard error says what is going on; gone when it is done.
class SecondsLine {
 public:
  explicit SecondsLine(std::string label);
  ~SecondsLine();
  SecondsLine(const SecondsLine&) = delete;
  SecondsLine& operator=(const SecondsLine&) = delete;

 private:
  void tick();
  std::string label_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_;
};

// What `work` gives; the line is gone before anything else can be printed.
template <class Work>
auto with_progress(const char* label, const Work& work) {
  const SecondsLine line(label);
  return work();
}

}  // namespace attend::cli
