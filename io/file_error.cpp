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

// What lines may hold: '\r' too, which is left out of them.
bool is_unseen_in_lines(char32_t x) {
  return is_unseen(x) && x != '\n' && x != '\t' && x != '\r' && x != 0x200C && x != 0x200D;
}

// Escapes what `unseen` says, and bytes that are not UTF-8.
void append_printable(std::string& out, std::string_view text, bool (*unseen)(char32_t)) {
  for (std::size_t place = 0; place < text.size();) {
    if (utf8_step(text, place).kind != Utf8Step::Kind::whole) {
      out += escaped("\\x%02x", static_cast<std::uint8_t>(text[place++]));
      continue;
    }
    const CodePoint c = code_point(text, place);
    if (unseen(c.value))
      out += escaped(c.value < 0x10000 ? "\\u%04x" : "\\u{%x}", c.value);
    else
      out += text.substr(place, c.bytes);
    place += c.bytes;
  }
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
  std::string out;
  if (text.size() <= most) {
    append_printable(out, text, is_unseen);
    return out;
  }
  const std::size_t front = most * 2 / 3;
  std::string_view head = text.substr(0, front);
  while (!head.empty() && (static_cast<std::uint8_t>(text[head.size()]) & 0xC0) == 0x80) head.remove_suffix(1);
  append_printable(out, head, is_unseen);
  const std::string_view end = tail(text, most - front);
  out += " [... " + std::to_string(text.size() - head.size() - end.size()) + " bytes ...] ";
  append_printable(out, end, is_unseen);
  return out;
}

std::string printable_text(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  append_printable(out, text, is_unseen_in_lines);
  std::erase(out, '\r');
  return out;
}

}  // namespace attend::io
