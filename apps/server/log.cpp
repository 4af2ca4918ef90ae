// A thread writes the events, so that a reader that stalls or closes never blocks the server.
#include "apps/server/log.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <climits>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <mutex>

#include "io/file_error.hpp"
#include "io/json.hpp"

namespace attend::server {
namespace {

// "2026-03-01T12:34:56.789Z"
std::string time_now() {
  timeval now{};
  (void)::gettimeofday(&now, nullptr);
  tm parts{};
  (void)::gmtime_r(&now.tv_sec, &parts);
  char text[80];
  (void)std::snprintf(text, sizeof text, "%04d-%02d-%02dT%02d:%02d:%02d.%03ldZ", parts.tm_year + 1900, parts.tm_mon + 1,
                      parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec, static_cast<long>(now.tv_usec / 1000));
  return text;
}

constexpr std::size_t kBuffer = 256 << 10;  // bytes of events that wait for the reader
constexpr std::size_t kValue = 500;         // bytes of a detail; a line then fits a pipe's atomic write
constexpr std::chrono::seconds kLastLines{1};

std::string line_of(LogForm form, std::string_view event,
                    std::initializer_list<std::pair<std::string_view, std::string>> details) {
  std::string line;
  if (form == LogForm::json) {
    io::JsonObject object;
    object.string("time", time_now());
    object.string("event", event);
    for (const auto& [name, value] : details) object.string(name, value.substr(0, kValue));
    line = object.text();
  } else {
    line = time_now();
    line.append(" ").append(event);
    for (const auto& [name, value] : details) {
      line.append(" ").append(name).append("=");
      const bool plain = !value.empty() && value.find_first_of(" \"=\\\t\r\n") == std::string::npos;
      line += plain ? io::printable(value, 200) : io::json_quoted(value.substr(0, 200));
    }
  }
  return line += '\n';
}

// The end of what one write takes: whole lines, so that those of several processes do not mix in a pipe.
std::size_t end_of_write(std::string_view text) {
  if (text.size() <= PIPE_BUF) return text.size();
  const std::size_t line = text.rfind('\n', PIPE_BUF - 1);
  return line == std::string_view::npos ? PIPE_BUF : line + 1;
}

}  // namespace

struct Log::Writer {
  using Clock = std::chrono::steady_clock;

  bool has_work() const { return !waiting.empty() || dropped > 0; }

  void loop() {
    sigset_t pipe{};  // a reader that has gone is an error of the write, not the end of the process
    (void)::sigemptyset(&pipe);
    (void)::sigaddset(&pipe, SIGPIPE);
    (void)::pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return ending || has_work(); });
      if (!has_work()) break;
      std::string text = std::exchange(waiting, {});
      if (const std::int64_t lines = std::exchange(dropped, 0); lines > 0)
        text += line_of(form, "log_dropped", {{"lines", std::to_string(lines)}});
      lock.unlock();
      write(text);
      lock.lock();
    }
    done = true;
    changed.notify_all();
  }

  // Where the descriptor is ready for it, a write of up to PIPE_BUF bytes does not block. Its file description belongs
  // to other processes too, so it is not made non-blocking.
  void write(std::string_view text) {
    while (!text.empty()) {
      if (!wait_until_writable()) return;
      const ssize_t count = ::write(descriptor, text.data(), end_of_write(text));
      if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (count <= 0) return;  // a closed standard error ends no server
      text.remove_prefix(static_cast<std::size_t>(count));
    }
  }
  bool wait_until_writable() {
    while (true) {
      pollfd ready{.fd = descriptor, .events = POLLOUT, .revents = 0};
      if (::poll(&ready, 1, 50) > 0) return true;
      const std::lock_guard lock(mutex);
      if (ending && Clock::now() >= until) return false;
    }
  }

  LogForm form = LogForm::none;
  int descriptor = 2;
  std::mutex mutex;
  std::condition_variable changed;
  std::string waiting{};
  std::int64_t dropped = 0;
  bool ending = false, done = false;
  Clock::time_point until{};
};

Log::Log(LogForm form, int descriptor) : form_(form) {
  if (form == LogForm::none) return;
  writer_ = std::make_shared<Writer>();
  writer_->form = form;
  writer_->descriptor = descriptor;
  thread_ = std::thread([writer = writer_] { writer->loop(); });
}

Log::~Log() {
  if (!writer_) return;
  std::unique_lock lock(writer_->mutex);
  writer_->ending = true;
  writer_->until = Writer::Clock::now() + kLastLines;
  writer_->changed.notify_all();
  const bool done = writer_->changed.wait_for(lock, 2 * kLastLines, [this] { return writer_->done; });
  lock.unlock();
  if (done)
    thread_.join();
  else
    thread_.detach();
}

void Log::say(std::string_view event,
              std::initializer_list<std::pair<std::string_view, std::string>> details) noexcept {
  if (!writer_) return;
  try {
    const std::string line = line_of(form_, event, details);
    {
      const std::lock_guard lock(writer_->mutex);
      if (writer_->waiting.size() + line.size() > kBuffer)
        ++writer_->dropped;
      else
        writer_->waiting += line;
    }
    writer_->changed.notify_one();
  } catch (...) {
  }
}

}  // namespace attend::server
