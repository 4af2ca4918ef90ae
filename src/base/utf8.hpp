// UTF-8, in headers alone: io, draw and llm each use it, and no library need export it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace attend {

struct Utf8Step {
  enum class Kind : std::uint8_t { whole, broken, cut };  // cut: the text ends inside a character
  Kind kind;
  std::uint8_t bytes;  // of the character, or of the longest beginning of one
};

namespace utf8 {

inline std::uint8_t byte_at(std::string_view text, std::size_t place) {
  return static_cast<std::uint8_t>(text[place]);
}

// How a character that begins with `lead` goes on: so many bytes in all (0: none begins so), the second within a range.
struct Form {
  std::uint8_t bytes, low, high;
};
inline Form form(std::uint8_t lead) {
  if (lead < 0x80) return {1, 0, 0};
  if (lead < 0xC2 || lead > 0xF4) return {0, 0, 0};
  if (lead < 0xE0) return {2, 0x80, 0xBF};
  if (lead < 0xF0) return {3, std::uint8_t(lead == 0xE0 ? 0xA0 : 0x80), std::uint8_t(lead == 0xED ? 0x9F : 0xBF)};
  return {4, std::uint8_t(lead == 0xF0 ? 0x90 : 0x80), std::uint8_t(lead == 0xF4 ? 0x8F : 0xBF)};
}

inline std::size_t ascii_run(std::string_view text, std::size_t place) {
  while (place < text.size() && byte_at(text, place) < 0x80) ++place;
  return place;
}

}  // namespace utf8

inline Utf8Step utf8_step(std::string_view text, std::size_t place) {  // place < text.size()
  const utf8::Form f = utf8::form(utf8::byte_at(text, place));
  if (f.bytes == 0) return {Utf8Step::Kind::broken, 1};
  for (std::uint8_t i = 1; i < f.bytes; ++i) {
    if (i >= text.size() - place) return {Utf8Step::Kind::cut, i};
    const std::uint8_t next = utf8::byte_at(text, place + i);
    if (next < (i == 1 ? f.low : 0x80) || next > (i == 1 ? f.high : 0xBF)) return {Utf8Step::Kind::broken, i};
  }
  return {Utf8Step::Kind::whole, f.bytes};
}

inline bool is_utf8(std::string_view bytes) {
  for (std::size_t place = utf8::ascii_run(bytes, 0); place < bytes.size(); place = utf8::ascii_run(bytes, place)) {
    const Utf8Step step = utf8_step(bytes, place);
    if (step.kind != Utf8Step::Kind::whole) return false;
    place += step.bytes;
  }
  return true;
}

// Every longest beginning of a character that goes on wrongly becomes one U+FFFD: as Unicode recommends, and as
// Python's errors="replace" and Rust's from_utf8_lossy do.
inline std::string utf8_repaired(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (std::size_t place = 0; place < bytes.size();) {
    const Utf8Step step = utf8_step(bytes, place);
    if (step.kind == Utf8Step::Kind::whole) {
      text.append(bytes, place, step.bytes);
    } else {
      text += "\xEF\xBF\xBD";
    }
    place += step.bytes;
  }
  return text;
}

// How many bytes at the end begin a character and lack the rest.
inline std::size_t utf8_cut_tail(std::string_view bytes) {
  for (std::size_t tail = 1; tail <= 3 && tail <= bytes.size(); ++tail) {
    const std::size_t place = bytes.size() - tail;
    if ((utf8::byte_at(bytes, place) & 0xC0) == 0x80) continue;
    const Utf8Step step = utf8_step(bytes, place);
    return step.kind == Utf8Step::Kind::cut && step.bytes == tail ? tail : 0;
  }
  return 0;
}

inline void append_utf8(std::string& text, char32_t c) {
  const auto put = [&](char32_t byte) { text += static_cast<char>(byte); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | (c >> 6));
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | (c >> 12));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | (c >> 18));
    put(0x80 | ((c >> 12) & 0x3F));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

struct CodePoint {
  char32_t value;
  std::size_t bytes;
};

// Of UTF-8 that is known to be whole.
inline CodePoint code_point(std::string_view text, std::size_t place) {
  const auto byte = [&](std::size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[place + i])); };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {((lead & 0x1F) << 6) | (byte(1) & 0x3F), 2};
  if (lead < 0xF0) return {((lead & 0x0F) << 12) | ((byte(1) & 0x3F) << 6) | (byte(2) & 0x3F), 3};
  return {((lead & 0x07) << 18) | ((byte(1) & 0x3F) << 12) | ((byte(2) & 0x3F) << 6) | (byte(3) & 0x3F), 4};
}

inline std::size_t previous_place(std::string_view text, std::size_t place) {  // place > 0
  do --place;
  while (place > 0 && (static_cast<unsigned char>(text[place]) & 0xC0) == 0x80);
  return place;
}

}  // namespace attend
