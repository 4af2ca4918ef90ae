// The words for JSON that breaks the rules.
#pragma once

#include <string>
#include <string_view>

#include "io/json.hpp"

namespace attend::io {

// The checks of a text before it is parsed: its size, and no zero bytes.
void check_json_text(std::string_view text, const std::string& what, const JsonLimits& limits);

// What parse_json says about the syntax of `text`; "" when it finds nothing. It builds no tree.
std::string json_syntax_error(std::string_view text);

// What parse_json says where a limit is exceeded or a key repeats.
std::string json_too_many_values(const JsonLimits& limits);
std::string json_too_deep(const JsonLimits& limits);
std::string json_repeated_key(std::string_view key);

}  // namespace attend::io
