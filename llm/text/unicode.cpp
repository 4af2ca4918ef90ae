// Categories, case and normal forms, by utf8proc's tables.
#include "llm/text/unicode.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "llm/text/unicode_tables.hpp"

namespace attend::llm {
namespace {

// The options of utf8proc are flags, though their type is an enumeration.
const auto kComposed =  // NOLINTNEXTLINE(clang-analyzer-optin.core.EnumCastOutOfRange)
    static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);

bool in(std::span<const CharRange> ranges, char32_t c) {
  const auto place =
      std::upper_bound(ranges.begin(), ranges.end(), c, [](char32_t x, const CharRange& r) { return x < r.first; });
  return place != ranges.begin() && c <= std::prev(place)->last;
}

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

// Capitals of Unicode 16 and 17, which utf8proc may not know yet.
char32_t new_lowercase(char32_t c) {
  switch (c) {
    case 0xA7CB:
      return 0x264;
    case 0xA7DC:
      return 0x19B;
    case 0x1C89:
    case 0xA7CC:
    case 0xA7CE:
    case 0xA7D2:
    case 0xA7D4:
    case 0xA7DA:
      return c + 1;
    default:
      if (c >= 0x10D50 && c <= 0x10D65) return c + 32;
      return c >= 0x16EA0 && c <= 0x16EB8 ? c + 27 : c;
  }
}

std::vector<utf8proc_int32_t> decomposed(std::string_view text) {
  std::vector<utf8proc_int32_t> all;
  all.reserve(text.size());
  std::array<utf8proc_int32_t, 32> parts{};  // the longest decomposition has 4
  for (std::size_t place = 0; place < text.size();) {
    const CodePoint c = code_point(text, place);
    place += c.bytes;
    const auto value = static_cast<utf8proc_int32_t>(c.value);
    const utf8proc_ssize_t count = utf8proc_decompose_char(
        value, parts.data(), static_cast<utf8proc_ssize_t>(parts.size()), UTF8PROC_DECOMPOSE, nullptr);
    if (count < 1 || count > static_cast<utf8proc_ssize_t>(parts.size()) || c.value == 0x11938) {
      all.push_back(value);
    } else {
      all.insert(all.end(), parts.begin(), parts.begin() + count);
    }
  }
  // Marks in canonical order. utf8proc's own sort takes quadratic time for long runs of marks.
  const auto order = [](utf8proc_int32_t c) {
    const auto value = static_cast<std::size_t>(utf8proc_get_property(c)->combining_class);
    return value != 0 && in(kNotReordered, static_cast<char32_t>(c)) ? 0 : value;
  };
  std::vector<std::pair<std::size_t, utf8proc_int32_t>> run;
  for (std::size_t begin = 0; begin < all.size();) {
    run.clear();
    for (std::size_t i = begin; i < all.size() && order(all[i]) != 0; ++i) {
      run.emplace_back((order(all[i]) << 40) | i, all[i]);
    }
    if (run.size() > 1) std::sort(run.begin(), run.end());
    for (const auto& [key, c] : run) all[begin++] = c;
    if (run.empty()) ++begin;
  }
  return all;
}

std::string to_utf8(std::span<const utf8proc_int32_t> all) {
  std::string text;
  text.reserve(all.size());
  for (const utf8proc_int32_t c : all) append_utf8(text, static_cast<char32_t>(c));
  return text;
}

}  // namespace

std::uint8_t traits_beyond_ascii(char32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT:
      return kLetter | kUpper;
    case UTF8PROC_CATEGORY_LL:
      return kLetter | kLower;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return kLetter;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return kMark;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return kNumber;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return kSpace;
    case UTF8PROC_CATEGORY_CN:
      if (in(kNewUpper, c)) return kLetter | kUpper;
      if (in(kNewLower, c)) return kLetter | kLower;
      if (in(kNewLetters, c)) return kLetter;
      if (in(kNewNumbers, c)) return kNumber;
      return in(kNewMarks, c) ? kMark : 0;
    default:
      return c == 0x85 ? kSpace : 0;
  }
}

bool is_numeric(char32_t c) {
  return (traits(c) & kNumber) != 0 || (c >= 128 && in(kNewDigits, c));
}

bool is_word(char32_t c) {
  if (c < 128) return c == '_' || (kAsciiTraits[c] & (kLetter | kNumber)) != 0;
  if (c == 0x200C || c == 0x200D) return true;  // the joiners
  switch (category(c)) {
    case UTF8PROC_CATEGORY_NO:
      return false;
    case UTF8PROC_CATEGORY_PC:
      return true;
    case UTF8PROC_CATEGORY_SO:  // the circled and squared letters count as alphabetic
      return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
             (c >= 0x1F170 && c <= 0x1F189);
    default:
      return (traits(c) & (kLetter | kMark | kNumber)) != 0;
  }
}

bool is_bert_punctuation(char32_t c) {
  if (c < 128) return c > ' ' && c < 127 && (kAsciiTraits[c] & (kLetter | kNumber)) == 0;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
      return !in(kNotBertPunctuation, c);
    default:
      return c == 0x166D || c == 0x111C9;  // punctuation once; Unicode has changed its mind
  }
}

bool is_bert_control(char32_t c) {
  if (c == '\t' || c == '\n' || c == '\r') return false;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CO:
      return !in(kNotBertControl, c);
    default:
      return false;
  }
}

bool is_chinese(char32_t c) {
  if (c < 0x3400) return false;
  return c <= 0x4DBF || (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0xF900 && c <= 0xFAFF) ||
         (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0x2F800 && c <= 0x2FA1F);
}

bool is_nonspacing_mark(char32_t c) {
  if (c < 0x300) return false;
  return c == 0x1734 || (category(c) == UTF8PROC_CATEGORY_MN && !in(kNotNonspacing, c));
}

bool is_combining_mark(char32_t c) {
  if (c < 0x300) return false;
  return c == 0x1CF2 || c == 0x1CF3 || ((traits(c) & kMark) != 0 && !in(kNewMarks, c) && !in(kNotCombining, c));
}

void append_lowercase(std::string& text, char32_t c) {
  if (c < 128) {
    text += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  } else if (c == 0x130) {
    text += "i\xCC\x87";  // the one letter whose small form is two characters
  } else {
    const utf8proc_int32_t lower = utf8proc_tolower(static_cast<utf8proc_int32_t>(c));
    append_utf8(text, static_cast<char32_t>(lower) != c ? static_cast<char32_t>(lower) : new_lowercase(c));
  }
}

std::string nfc(std::string_view text) {
  // Nothing below U+0300 combines or is composed, and its lead bytes are below 0xCC.
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0xCC; })) {
    return std::string(text);
  }
  std::vector<utf8proc_int32_t> all = decomposed(text);
  std::string out;
  out.reserve(text.size());
  // A mark that these forms do not know combines with nothing, and nothing combines across it.
  const auto unknown = [](utf8proc_int32_t c) { return c >= 0x7FD && in(kNotReordered, static_cast<char32_t>(c)); };
  for (auto begin = all.begin(); begin != all.end();) {
    const auto end = std::find_if(begin, all.end(), unknown);
    const utf8proc_ssize_t count = utf8proc_normalize_utf32(&*begin, end - begin, kComposed);
    out += to_utf8({begin, count < 0 ? end : begin + count});
    begin = end;
    for (; begin != all.end() && unknown(*begin); ++begin) append_utf8(out, static_cast<char32_t>(*begin));
  }
  return out;
}

std::string nfd(std::string_view text) {
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; })) {
    return std::string(text);
  }
  return to_utf8(decomposed(text));
}

}  // namespace attend::llm
