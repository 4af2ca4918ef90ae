// A JSON value as text again.
#pragma once

#include <string>

#include "io/json.hpp"

namespace attend::io {

// On one line, nothing between its parts; `spaced`: a space behind ',' and ':', as Python's json.dumps writes it.
std::string json_text(const Json& value, bool spaced = false);
// A line for each part, indented by so many spaces a level, as Python's json.dumps(indent=...) writes it.
std::string json_lines(const Json& value, int indent);

}  // namespace attend::io
