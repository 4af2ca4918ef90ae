// Draws progress bars and lines.
#include "progress.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string_view>
#include <utility>

#include "io/environment.hpp"
#include "io/readable.hpp"

namespace attend::cli {
namespace {

using namespace std::chrono_literals;

constexpr int kWidestBar = 40, kNarrowestBar = 8;
constexpr double kSecondsOfRate = 3;  // the rate is that of about the last so many seconds

std::string amount(double x, const char* unit) {
  if (unit == nullptr) return io::readable_bytes(x);
  return fmt::format("{} {}", io::readable_count(std::llround(x)), unit);
}

std::string clock_time(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::min(std::ceil(seconds), 359999.0));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{}:{:02} min", whole / 60, whole % 60);
  return fmt::format("{}:{:02} h", whole / 3600, whole / 60 % 60);
}

// A line that the next one, or the end, takes away. Not fmt::print, which throws when the terminal is gone.
constexpr const char* kClearLine = "\r\x1b[K";

void print_now(const std::string& text) {
  (void)std::fputs(text.c_str(), stderr);
  (void)std::fflush(stderr);
}

}  // namespace

int columns_of_terminal() {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string progress_line(const std::string& label, std::int64_t done, std::int64_t total, double rate, int columns,
                          const char* unit) {
  std::string text = amount(static_cast<double>(done), unit);
  const bool share = unit != nullptr && std::string_view(unit) == "%";  // neither its total nor its rate tells anything
  if (total > 0 && !share) text += fmt::format(" of {}", amount(static_cast<double>(total), unit));
  if (rate > 0 && !share) text += fmt::format(", {}/s", amount(rate, unit));
  if (rate > 0 && total > done) text += fmt::format(", {} left", clock_time(static_cast<double>(total - done) / rate));
  std::string line = label + "  ";
  const int room = std::min(columns - 1 - static_cast<int>(line.size() + text.size()) - 4, kWidestBar);
  if (total > 0 && room >= kNarrowestBar) {
    const double part = std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0);
    const auto full = static_cast<std::size_t>(part * room);
    line += fmt::format("[{}{}]  ", std::string(full, '#'), std::string(static_cast<std::size_t>(room) - full, '.'));
  }
  line += text;
  return line.substr(0, static_cast<std::size_t>(std::max(columns - 1, 0)));
}

ProgressBar::ProgressBar(std::string label, std::int64_t total, const char* unit, std::int64_t begin)
    : label_(std::move(label)),
      total_(total),
      unit_(unit),
      terminal_(::isatty(STDERR_FILENO) != 0 && io::environment("TERM") != "dumb"),
      measured_(begin),
      measured_at_(Clock::now()),
      next_(measured_at_ + (terminal_ ? Clock::duration(500ms) : Clock::duration(10s))) {}

ProgressBar::~ProgressBar() {
  if (drawn_) print_now(kClearLine);
}

// A running mean that forgets: a connection that stalls should show.
void ProgressBar::measure(std::int64_t done, Clock::time_point now) {
  const double seconds = std::chrono::duration<double>(now - measured_at_).count();
  if (seconds <= 0) return;
  const double last = static_cast<double>(done - measured_) / seconds;
  const double weight = rate_ > 0 ? 1 - std::exp(-seconds / kSecondsOfRate) : 1;
  rate_ = std::max(0.0, rate_ + weight * (last - rate_));
  measured_ = done;
  measured_at_ = now;
}

void ProgressBar::update(std::int64_t done) {
  const Clock::time_point now = Clock::now();
  if (now < next_) return;
  measure(done, now);
  const std::string line = progress_line(label_, done, total_, rate_, terminal_ ? columns_of_terminal() : 200, unit_);
  print_now(terminal_ ? kClearLine + line : line + "\n");
  drawn_ = terminal_;
  next_ = now + (terminal_ ? Clock::duration(100ms) : Clock::duration(10s));
}

SecondsLine::SecondsLine(std::string label) : label_(std::move(label)) {
  if (::isatty(STDERR_FILENO) != 0) thread_ = std::thread([this] { tick(); });
}

SecondsLine::~SecondsLine() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void SecondsLine::tick() {
  std::unique_lock lock(mutex_);
  for (int seconds = 1;; ++seconds) {
    if (changed_.wait_for(lock, 1s, [this] { return done_; })) {
      if (seconds > 1) print_now(kClearLine);
      return;
    }
    print_now(fmt::format("{}{} ... {} s", kClearLine, label_, seconds));
  }
}

}  // namespace attend::cli
