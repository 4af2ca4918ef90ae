// Words in two languages: every sentence of a lab is written in English and in Chinese, side by side.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "attend/error.hpp"

namespace attend::labs {

enum class Language { en, zh };

struct Text {
  std::string en, zh;

  const std::string& in(Language language) const { return language == Language::en ? en : zh; }
  bool operator==(const Text&) const = default;
};

// A Chinese format string: one that holds no Chinese, or not the arguments of its English twin, does not compile.
template <class... T>
struct Chinese {
  template <std::size_t N>
  consteval Chinese(const char (&text)[N]) : format(text) {  // NOLINT(google-explicit-constructor): it stands for one
    bool chinese = false;
    for (const char c : text) chinese = chinese || static_cast<unsigned char>(c) >= 0xe3;
    if (!chinese) throw "the Chinese text is missing";
  }
  fmt::basic_format_string<char, T...> format;
};

// "0e+00", a difference of exactly zero under {:.0e}, as a plain 0.
inline std::string with_plain_zeros(std::string text) {
  constexpr std::string_view kZero = "0e+00";
  for (std::size_t at = text.find(kZero); at != std::string::npos; at = text.find(kZero, at + 1))
    if (at == 0 || (text[at - 1] != '.' && (text[at - 1] < '0' || text[at - 1] > '9')))
      text.replace(at, kZero.size(), "0");
  return text;
}

template <class... T>
Text say(fmt::format_string<const T&...> en, const std::type_identity_t<Chinese<const T&...>>& zh, const T&... values) {
  return {with_plain_zeros(fmt::format(en, values...)), with_plain_zeros(fmt::format(zh.format, values...))};
}

// What both languages write alike: numbers, symbols, names.
template <class... T>
Text same(fmt::format_string<const T&...> text, const T&... values) {
  const std::string once = fmt::format(text, values...);
  return {once, once};
}

// What was asked for is not there or cannot be done, said in both languages.
class Refused : public InvalidArgument {
 public:
  explicit Refused(Text text) : InvalidArgument(text.en), said(std::move(text)) {}

  Text said;
};

// What `job` returns; what it refuses is said in that language.
template <class Job>
auto said_in(Language language, const Job& job) {
  try {
    return job();
  } catch (const Refused& refused) {
    throw InvalidArgument(refused.said.in(language));
  }
}

}  // namespace attend::labs
