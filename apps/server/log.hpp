// What the server says while it runs: lines for people, or JSON for machines. Never what was asked or answered.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

namespace attend::server {

enum class LogForm { none, lines, json };

class Log {
 public:
  explicit Log(LogForm form = LogForm::none, int descriptor = 2) : form_(form), descriptor_(descriptor) {}
  // One event with its details; text that came from outside is escaped. From any thread; never throws.
  void say(std::string_view event,
           std::initializer_list<std::pair<std::string_view, std::string>> details = {}) noexcept;

 private:
  LogForm form_;
  int descriptor_;
  std::mutex mutex_;
};

}  // namespace attend::server
