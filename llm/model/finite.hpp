// Weights that are read to go on with, or written for others, are finite.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <string>

#include "io/file_error.hpp"

namespace attend::llm {

// FileError with the tensor's name if a value is NaN or infinite. `where` begins the message.
inline void check_finite(const std::string& where, const std::string& tensor, std::span<const float> values) {
  const auto bad = std::find_if(values.begin(), values.end(), [](float x) { return !std::isfinite(x); });
  if (bad == values.end()) return;
  throw io::FileError(where + ": the tensor \"" + tensor + "\" holds " + (std::isnan(*bad) ? "NaN" : "infinity") +
                      ", expected finite values");
}

}  // namespace attend::llm
