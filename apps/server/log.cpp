// Writes each event with one write(), so that lines of several processes do not mix.
#include "apps/server/log.hpp"

#include <sys/time.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>

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

}  // namespace

void Log::say(std::string_view event,
              std::initializer_list<std::pair<std::string_view, std::string>> details) noexcept {
  if (form_ == LogForm::none) return;
  try {
    std::string line;
    if (form_ == LogForm::json) {
      io::JsonObject object;
      object.string("time", time_now());
      object.string("event", event);
      for (const auto& [name, value] : details) object.string(name, value);
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
    line += '\n';
    const std::lock_guard lock(mutex_);
    for (std::size_t done = 0; done < line.size();) {
      const ssize_t count = ::write(descriptor_, line.data() + done, line.size() - done);
      if (count <= 0) return;  // a closed standard error ends no server
      done += static_cast<std::size_t>(count);
    }
  } catch (...) {
  }
}

}  // namespace attend::server
