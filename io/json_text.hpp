// A JSON value as text again.
#pragma once

#include <string>

#include "io/json.hpp"

namespace attend::io {

// On one line, nothing between its parts; `spaced`: a space behind ',' and ':', as Python's json.dumps writes it.
std::string json_text(const Json& value, bool spaced = false);

}  // namespace attend::io
