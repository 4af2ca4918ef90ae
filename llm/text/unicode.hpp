// What tokenizers ask of a character.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/utf8.hpp"

namespace attend::llm {

// Categories as the regular expressions of tokenizers see them.
enum Trait : std::uint8_t { kLetter = 1, kNumber = 2, kSpace = 4, kMark = 8, kUpper = 16, kLower = 32 };
std::uint8_t traits_beyond_ascii(char32_t c);

constexpr std::array<std::uint8_t, 128> kAsciiTraits = [] {
  std::array<std::uint8_t, 128> traits{};
  for (std::size_t c = 'a'; c <= 'z'; ++c) traits[c] = kLetter | kLower;
  for (std::size_t c = 'A'; c <= 'Z'; ++c) traits[c] = kLetter | kUpper;
  for (std::size_t c = '0'; c <= '9'; ++c) traits[c] = kNumber;
  for (std::size_t c = '\t'; c <= '\r'; ++c) traits[c] = kSpace;
  traits[' '] = kSpace;
  return traits;
}();

inline std::uint8_t traits(char32_t c) {
  return c < 128 ? kAsciiTraits[c] : traits_beyond_ascii(c);
}

bool is_numeric(char32_t c);           // Rust's char::is_numeric, which the Digits pre-tokenizer asks
bool is_word(char32_t c);              // \w of Rust's regular expressions
bool is_bert_punctuation(char32_t c);  // the BERT tokenizer's, in ASCII with $+<=>^`|~
bool is_bert_control(char32_t c);
bool is_chinese(char32_t c);
bool is_nonspacing_mark(char32_t c);  // BertNormalizer's strip_accents
bool is_combining_mark(char32_t c);   // the StripAccents normalizer
void append_lowercase(std::string& text, char32_t c);

std::string nfc(std::string_view text);
std::string nfd(std::string_view text);

}  // namespace attend::llm
