// Tokens as a reader sees them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace attend::draw {

// Spaces at both ends as ␣ (with `ascii` as _), bytes that are no whole character as \xe4, what cannot be printed as
// printable() has it, and cut with an ellipsis (..) behind `most` characters.
std::string token_label(std::string_view piece, std::size_t most = 16, bool ascii = false);
std::vector<std::string> token_labels(const std::vector<std::string>& pieces, std::size_t most = 16,
                                      bool ascii = false);

// One line that can neither command a terminal nor turn the direction of reading: control characters and those of
// direction escaped (\n, \t, \u202e), broken UTF-8 as U+FFFD.
std::string printable(std::string_view text);

}  // namespace attend::draw
