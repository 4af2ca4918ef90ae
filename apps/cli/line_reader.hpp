// Reads lines that somebody types at a terminal.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace attend::cli {

// Where the program was built with libedit and the terminal can do it: arrows move in the line and through the lines
// before (Ctrl-R searches them), characters are erased whole. Else the terminal's own line editing. The lines live as
// long as the reader: nothing is written to disk.
class LineReader {
 public:
  explicit LineReader(std::string prompt, bool bold);  // the prompt stands before every line
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  std::optional<std::string> read();  // without its end; nothing at the end of the input

 private:
  struct Editor;
  std::string prompt_;
  std::unique_ptr<Editor> editor_;  // null: the terminal's own
};

}  // namespace attend::cli
