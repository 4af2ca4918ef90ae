// Text that arrives in pieces, on a terminal, with its words kept whole at the right edge.
#pragma once

#include <string>
#include <string_view>

namespace attend::draw {

// Each piece can be shown at once: a word that reaches the edge before it ends is taken back and begun anew on the next
// line. Control characters in it become U+FFFD, so that a text cannot command the terminal.
class WrappedText {
 public:
  // What to print for a piece, which is whole characters of UTF-8, on a terminal of so many columns.
  std::string put(std::string_view piece, int columns);

 private:
  void put_character(std::string_view character, char32_t value, int width, std::string& out);
  void new_line(std::string& out);

  int column_ = 0;
  int edge_ = 0;      // columns that a line may fill
  std::string word_;  // what of the last word is shown, and its columns
  int word_columns_ = 0;
};

}  // namespace attend::draw
