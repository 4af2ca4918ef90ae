// Tokens as a reader sees them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace attend::draw {

// Spaces at both ends as ␣, control and direction characters escaped (\n, \t, \u202e), broken UTF-8 as U+FFFD, and cut
// with an ellipsis behind `most` characters. With `ascii` the space is _ and the ellipsis "..".
std::string token_label(std::string_view piece, std::size_t most = 16, bool ascii = false);

}  // namespace attend::draw
