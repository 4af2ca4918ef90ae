// The terminal that standard output goes to.
#pragma once

#include "draw/terminal.hpp"

namespace attend::cli {

// Colours only on a terminal, and neither with NO_COLOR nor when not `allowed`.
draw::Screen look_at_screen(bool allowed);

}  // namespace attend::cli
