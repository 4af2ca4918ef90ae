// What the server says while it runs: lines for people, or JSON for machines. Never what was asked or answered.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

namespace attend::server {

enum class LogForm { none, lines, json };

class Log {
 public:
  explicit Log(LogForm form = LogForm::none, int descriptor = 2);
  ~Log();  // writes what waits, for a second at most
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  // One event with its details; text that came from outside is escaped and shortened. From any thread; never throws,
  // and never waits for the reader: events that do not fit the buffer are dropped, and a later "log_dropped" counts
  // them.
  void say(std::string_view event,
           std::initializer_list<std::pair<std::string_view, std::string>> details = {}) noexcept;

 private:
  struct Writer;
  LogForm form_;
  std::shared_ptr<Writer> writer_;  // the thread has a share: it may hang in a write for ever
  std::thread thread_;
};

}  // namespace attend::server
