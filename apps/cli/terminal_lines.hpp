// Lines as the terminal itself gives them.
#pragma once

#include <optional>
#include <string>

namespace attend::cli {

// Tells the terminal that what is typed is UTF-8, so that its own line editing erases characters and not bytes.
void erase_whole_characters();

std::optional<std::string> read_plain_line(const std::string& prompt);  // nothing at the end of the input

}  // namespace attend::cli
