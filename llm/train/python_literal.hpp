// Lists and dicts as Python prints them: CSV files that pandas and datasets write hold them so.
#pragma once

#include <string>
#include <string_view>

namespace attend::llm {

// The text as JSON: strings in single quotes, None, True, False, tuples, and dicts of a NumPy array, which have no
// commas between them. What is not Python either comes out as text that is not JSON.
std::string json_of_python(std::string_view text);

}  // namespace attend::llm
