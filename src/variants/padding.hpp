// Masks of padding alone, for variants in which no other rule makes sense.
#pragma once

#include <cstdint>

#include "attend/mask.hpp"

namespace attend {

// InvalidArgument unless every rule is padding that fits B sequences of N keys. `why` ends the text.
void check_padding_alone(const char* op, const Mask& mask, std::int64_t B, std::int64_t N, const char* why);

// The keys of sequence b that a checked mask keeps: first <= j < last.
struct KeptKeys {
  std::int64_t first, last;
};
KeptKeys kept_keys(const Mask& mask, std::int64_t b, std::int64_t N);

}  // namespace attend
