// The terminal that standard output goes to.
#pragma once

#include <string>
#include <string_view>

#include "draw/terminal.hpp"

namespace attend::cli {

// Colours only on a terminal, and neither with NO_COLOR nor when not `allowed`.
draw::Screen look_at_screen(bool allowed);

// A prompt or what a model wrote, for standard output: on a terminal as io::printable_text has it, so that it cannot
// command the terminal; in a file or a pipe unchanged.
std::string for_screen(std::string_view text);

// Prints a line on standard error, as io::printable_text has it: messages quote names of files. Never throws.
void tell(std::string_view line);

}  // namespace attend::cli
