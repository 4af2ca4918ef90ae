// Where Hugging Face's tables of characters and utf8proc's differ.
#pragma once

#include <cstdint>
#include <span>

namespace attend::llm {

struct CharRange {
  char32_t first, last;
};

// Both ends belong to a range; ranges ascend.
extern const std::span<const CharRange> kNewLetters, kNewNumbers, kNewMarks, kNewUpper, kNewLower, kNewDigits;
extern const std::span<const CharRange> kNotBertPunctuation, kNotBertControl, kNotNonspacing, kNotCombining;
extern const std::span<const CharRange> kNotReordered;

}  // namespace attend::llm
