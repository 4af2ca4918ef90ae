// The known name that a mistyped one is closest to.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace attend::io {

// The name that is one or two typing errors away from `typed` (a letter too many, too few, another one, two swapped),
// or whose words `typed` has among others; "" if none is near.
std::string closest(std::string_view typed, std::span<const std::string> names);

// "; did you mean 'generate'?", or "".
std::string did_you_mean(std::string_view typed, std::span<const std::string> names);

}  // namespace attend::io
