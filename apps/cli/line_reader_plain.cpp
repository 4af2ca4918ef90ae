// Lines from the terminal's own editing, where there is no libedit.
#include <cstdio>
#include <utility>

#include "line_reader.hpp"
#include "terminal_lines.hpp"

namespace attend::cli {

struct LineReader::Editor {};

LineReader::LineReader(std::string prompt, bool bold)
    : prompt_(bold ? "\x1b[1m" + prompt + "\x1b[0m" : std::move(prompt)) {
  erase_whole_characters();
}

LineReader::~LineReader() = default;

std::optional<std::string> LineReader::read() {
  return read_plain_line(prompt_);
}

}  // namespace attend::cli
