// Sizes, counts and times as people read them.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace attend::io {

std::string readable_bytes(double bytes);                    // "64 MiB"
std::string readable_time(double seconds);                   // "3.2 ms"
std::string readable_count(std::int64_t count);              // "134,515,008"
std::string counted(std::int64_t count, const char* thing);  // "1 token", "2 tokens"
std::string joined(std::span<const std::string> texts, const char* between);

}  // namespace attend::io
