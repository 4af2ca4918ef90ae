// A file that cannot be used, and text from files in messages.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "attend/error.hpp"

namespace attend::io {

// Text from a file as a terminal may show it: controls, broken UTF-8 and what reorders or hides text are escaped
// (\u001b, \xff), and of more than `most` bytes the middle is left out, with how much.
std::string printable(std::string_view text, std::size_t most = 1000);

// The same of text in lines, as a model writes it: line ends, tabs and the joiners of scripts and emoji (U+200C,
// U+200D) stay, '\r' is left out, and nothing is cut.
std::string printable_text(std::string_view text);

// Which file, what is wrong with it (which field, which value), what was expected. For writing: at what step, and what
// the system said. Whatever the message quotes of a file is made printable here.
class FileError : public attend::FileError {
 public:
  explicit FileError(std::string_view text) : attend::FileError(printable(text)) {}
};

}  // namespace attend::io
