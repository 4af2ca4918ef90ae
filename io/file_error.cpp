// Text from a file, made fit for a terminal.
#include "io/file_error.hpp"

#include <cstdint>
#include <cstdio>

#include "base/utf8.hpp"

namespace attend::io {
namespace {

// Controls, and what would reverse the order of a line or hide a part of it.
bool is_unseen(char32_t x) {
  return x < 0x20 || (x >= 0x7F && x < 0xA0) || x == 0xAD || x == 0x61C || (x >= 0x200B && x <= 0x200F) ||
         (x >= 0x2028 && x <= 0x202E) || (x >= 0x2060 && x <= 0x206F) || x == 0xFEFF || (x >= 0xFFF9 && x <= 0xFFFB) ||
         x >= 0xE0000;
}

std::string escaped(const char* format, char32_t value) {
  char text[16];
  (void)std::snprintf(text, sizeof text, format, static_cast<unsigned>(value));
  return text;
}

// The end of `text`, at most `most` bytes, not beginning inside of a character.
std::string_view tail(std::string_view text, std::size_t most) {
  text.remove_prefix(text.size() - most);
  while (!text.empty() && (static_cast<std::uint8_t>(text.front()) & 0xC0) == 0x80) text.remove_prefix(1);
  return text;
}

}  // namespace

std::string printable(std::string_view text, std::size_t most) {
  // What is cut off need not be looked at: a field of a gigabyte costs no more than one of a kilobyte.
  const bool cut = text.size() > most;
  std::string out;
  const auto add = [&](std::string_view part) {
    while (!part.empty()) {
      if (utf8_step(part, 0).kind != Utf8Step::Kind::whole) {
        out += escaped("\\x%02x", static_cast<std::uint8_t>(part[0]));
        part.remove_prefix(1);
        continue;
      }
      const CodePoint c = code_point(part, 0);
      if (is_unseen(c.value))
        out += escaped(c.value < 0x10000 ? "\\u%04x" : "\\u{%x}", c.value);
      else
        out += part.substr(0, c.bytes);
      part.remove_prefix(c.bytes);
    }
  };
  if (!cut) {
    add(text);
    return out;
  }
  const std::size_t front = most * 2 / 3;
  std::string_view head = text.substr(0, front);
  while (!head.empty() && (static_cast<std::uint8_t>(text[head.size()]) & 0xC0) == 0x80) head.remove_suffix(1);
  add(head);
  const std::string_view end = tail(text, most - front);
  out += " [... " + std::to_string(text.size() - head.size() - end.size()) + " bytes ...] ";
  add(end);
  return out;
}

}  // namespace attend::io
