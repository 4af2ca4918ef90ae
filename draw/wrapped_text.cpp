// Wrapping at the screen's edge while the text still grows.
#include "draw/wrapped_text.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/utf8.hpp"
#include "draw/columns.hpp"

namespace attend::draw {
namespace {

constexpr int kTab = 8;

bool is_control(char32_t c) {
  return c < 0x20 || (c >= 0x7F && c < 0xA0);
}

}  // namespace

std::string WrappedText::put(std::string_view piece, int columns) {
  // The last column stays free: a cursor behind it stands where no two terminals agree. The window may change.
  edge_ = std::max(columns - 1, 8);
  std::string out;
  for (std::size_t place = 0; place < piece.size();) {
    const CodePoint c = code_point(piece, place);
    const std::string_view character = piece.substr(place, c.bytes);
    place += c.bytes;
    if (c.value == '\n') {
      new_line(out);
    } else if (c.value == '\t') {
      do put_character(" ", ' ', 1, out);
      while (column_ % kTab != 0 && column_ < edge_);
    } else if (is_control(c.value)) {
      if (c.value != '\r') put_character("\xEF\xBF\xBD", 0xFFFD, 1, out);
    } else {
      put_character(character, c.value, columns_of(c.value), out);
    }
  }
  return out;
}

void WrappedText::new_line(std::string& out) {
  out += '\n';
  column_ = word_columns_ = 0;
  word_.clear();
}

void WrappedText::put_character(std::string_view character, char32_t value, int width, std::string& out) {
  if (value == ' ') {
    word_.clear();
    word_columns_ = 0;
    if (column_ >= edge_) return;  // the line ends here, or the next word goes to the next one
  } else if (column_ + width > edge_) {
    // Wide characters (Chinese) break anywhere, and so does a word that fills a line by itself.
    if (word_columns_ == 0 || word_columns_ >= column_ || width > 1) {
      new_line(out);
    } else {
      const std::string word = word_;
      const int columns = word_columns_;
      out += fmt::format("\x1b[{}D\x1b[K", columns);
      new_line(out);
      out += word;
      word_ = word;
      column_ = word_columns_ = columns;
    }
  }
  out += character;
  column_ += width;
  if (value == ' ') return;
  if (width > 1) {
    word_.clear();
    word_columns_ = 0;
  } else {
    word_ += character;
    word_columns_ += width;
  }
}

}  // namespace attend::draw
