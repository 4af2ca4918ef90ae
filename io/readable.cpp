// Sizes, counts and times as people read them.
#include "io/readable.hpp"

#include <cstdio>
#include <iterator>

namespace attend::io {
namespace {

std::string decimal(double x, int digits, const char* unit) {
  char text[64];
  (void)std::snprintf(text, sizeof text, "%.*f %s", digits, x, unit);
  return text;
}

}  // namespace

std::string readable_bytes(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < std::size(units); ++unit) bytes /= 1024;
  return decimal(bytes, bytes < 10 && unit > 0 ? 1 : 0, units[unit]);
}

std::string readable_time(double seconds) {
  if (seconds < 1e-3) return decimal(seconds * 1e6, 1, "us");
  return seconds < 1 ? decimal(seconds * 1e3, 1, "ms") : decimal(seconds, 2, "s");
}

std::string readable_count(std::int64_t count) {
  const std::string digits = std::to_string(count);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0 && digits[i - 1] != '-') text += ',';
    text += digits[i];
  }
  return text;
}

std::string counted(std::int64_t count, const char* thing) {
  return std::to_string(count) + " " + thing + (count == 1 ? "" : "s");
}

std::string joined(std::span<const std::string> texts, const char* between) {
  std::string all;
  for (const std::string& text : texts) all += (all.empty() ? "" : between) + text;
  return all;
}

}  // namespace attend::io
