// Text that arrives in pieces, on a terminal, with its words kept whole at the right edge.
#pragma once

#include <string>
#include <string_view>

namespace attend::cli {

// Shows each piece at once: a word that reaches the edge before it ends is taken back and begun anew on the next line.
// Control characters in it are shown as U+FFFD, so that a text cannot command the terminal.
class WrappedText {
 public:
  explicit WrappedText(bool wrap) : wrap_(wrap) {}  // false: standard output is no terminal, the text goes out as it is
  void put(std::string_view piece);                 // whole characters of UTF-8

 private:
  void put_character(std::string_view character, char32_t value, int width, std::string& out);
  void new_line(std::string& out);

  bool wrap_;
  int column_ = 0;
  int edge_ = 0;      // columns that a line may fill
  std::string word_;  // what of the last word is shown, and its columns
  int word_columns_ = 0;
};

}  // namespace attend::cli
