// UTF-8 and what tokenizers ask of a character.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace attend::llm {

// --- UTF-8 ---

struct Utf8Step {
  enum class Kind : std::uint8_t { whole, broken, cut };  // cut: the text ends inside a character
  Kind kind;
  std::uint8_t bytes;  // of the character, or of the longest beginning of one
};
Utf8Step utf8_step(std::string_view text, std::size_t place);  // place < text.size()

// Every longest beginning of a character that goes on wrongly becomes one U+FFFD: as Unicode recommends, and as
// Python's errors="replace" and Rust's from_utf8_lossy do.
std::string utf8_repaired(std::string_view bytes);
bool is_utf8(std::string_view bytes);
std::size_t utf8_cut_tail(std::string_view bytes);  // how many bytes at the end begin a character and lack the rest

void append_utf8(std::string& text, char32_t c);

struct CodePoint {
  char32_t value;
  std::size_t bytes;
};

// Of UTF-8 that is known to be whole.
inline CodePoint code_point(std::string_view text, std::size_t place) {
  const auto byte = [&](std::size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[place + i])); };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {((lead & 0x1F) << 6) | (byte(1) & 0x3F), 2};
  if (lead < 0xF0) return {((lead & 0x0F) << 12) | ((byte(1) & 0x3F) << 6) | (byte(2) & 0x3F), 3};
  return {((lead & 0x07) << 18) | ((byte(1) & 0x3F) << 12) | ((byte(2) & 0x3F) << 6) | (byte(3) & 0x3F), 4};
}

inline std::size_t previous_place(std::string_view text, std::size_t place) {  // place > 0
  do --place;
  while (place > 0 && (static_cast<unsigned char>(text[place]) & 0xC0) == 0x80);
  return place;
}

// --- characters ---

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
