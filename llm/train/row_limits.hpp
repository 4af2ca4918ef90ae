// What a row of training data may be at most.
#pragma once

#include <string>

#include "io/json.hpp"

namespace attend::llm {

inline constexpr std::size_t kMaxRowBytes = std::size_t{16} << 20;
inline constexpr io::JsonLimits kRowLimits{.bytes = kMaxRowBytes, .depth = 64, .values = std::size_t{1} << 18};

inline io::FileError too_long(const std::string& place) {
  return io::FileError(place + ": the row is longer than 16 MiB, the most that is read");
}

}  // namespace attend::llm
