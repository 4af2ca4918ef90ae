// A parser by recursive descent, of bounded depth.
#include "llm/constrain/regex_parser.hpp"

#include <algorithm>
#include <optional>
#include <string>

#include "attend/error.hpp"
#include "base/utf8.hpp"
#include "io/json.hpp"

namespace attend::llm {
namespace {

constexpr std::size_t kMaxPattern = 16384;  // bytes
constexpr int kMaxGroups = 100;             // in each other
constexpr std::int32_t kMaxCount = 65535;   // of a quantifier

const CharacterSet kDigit = {{'0', '9'}};
const CharacterSet kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CharacterSet kWhite = {{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
                             {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
const CharacterSet kLineEnd = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

Regex of_characters(CharacterSet characters) {
  return {.kind = Regex::Kind::characters, .characters = std::move(characters)};
}
Regex any_text() {
  return {.kind = Regex::Kind::repeat, .parts = {of_characters(all_characters())}};
}

class Parser {
 public:
  explicit Parser(std::string_view pattern) : pattern_(pattern) {
    if (pattern.size() > kMaxPattern) refuse("it has more than " + std::to_string(kMaxPattern) + " bytes");
  }

  Regex whole() {
    Regex all = alternatives(0);
    if (more()) refuse("a \")\" closes nothing");
    return all;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw InvalidArgument("pattern " + io::json_quoted(pattern_.substr(0, 100)) + ", byte " + std::to_string(place_) +
                          ": " + what);
  }
  bool more() const { return place_ < pattern_.size(); }
  bool at(std::string_view text) const { return pattern_.substr(place_).starts_with(text); }
  bool take(std::string_view text) {
    if (!at(text)) return false;
    place_ += text.size();
    return true;
  }
  char32_t character() {
    if (!more()) refuse("it ends too early");
    const CodePoint c = code_point(pattern_, place_);
    place_ += c.bytes;
    return c.value;
  }

  Regex alternatives(int depth) {
    if (depth > kMaxGroups) refuse("it has more than " + std::to_string(kMaxGroups) + " groups in each other");
    Regex all{.kind = Regex::Kind::alternatives};
    do all.parts.push_back(sequence(depth));
    while (take("|"));
    return all;
  }

  // Anchors are known in alternatives of the whole pattern; without them any text may be before and after.
  Regex sequence(int depth) {
    Regex all;
    const bool outside = depth == 0;
    if (outside && !take("^")) all.parts.push_back(any_text());
    while (more() && !at("|") && !at(")")) {
      if (at("^")) refuse("^ is supported at the beginning of an alternative of the whole pattern only");
      if (take("$")) {
        if (!outside || (more() && !at("|")))
          refuse("$ is supported at the end of an alternative of the whole pattern only");
        return all;
      }
      all.parts.push_back(quantified(depth));
    }
    if (outside) all.parts.push_back(any_text());
    return all;
  }

  Regex quantified(int depth) {
    Regex one = atom(depth);
    Regex all{.kind = Regex::Kind::repeat};
    if (take("*")) {
    } else if (take("+")) {
      all.min = 1;
    } else if (take("?")) {
      all.max = 1;
    } else if (!counts(all)) {
      return one;
    }
    (void)take("?");  // lazy: the same texts
    Regex again;
    if (at("*") || at("+") || at("?") || counts(again)) refuse("a quantifier follows another");
    all.parts.push_back(std::move(one));
    return all;
  }

  // {n}, {n,} or {n,m}; other braces are characters.
  bool counts(Regex& repeat) {
    const std::size_t before = place_;
    const auto no = [&] {
      place_ = before;
      return false;
    };
    if (!take("{")) return false;
    const std::optional<std::int32_t> min = number();
    if (!min) return no();
    repeat.min = repeat.max = *min;
    if (take(",")) repeat.max = number().value_or(-1);
    if (!take("}")) return no();
    if (repeat.max >= 0 && repeat.max < repeat.min) refuse("a quantifier's numbers are out of order");
    return true;
  }
  std::optional<std::int32_t> number() {
    std::optional<std::int32_t> value;
    for (; more() && pattern_[place_] >= '0' && pattern_[place_] <= '9'; ++place_) {
      value = value.value_or(0) * 10 + (pattern_[place_] - '0');
      if (*value > kMaxCount) refuse("it counts to more than " + std::to_string(kMaxCount));
    }
    return value;
  }

  Regex atom(int depth) {
    if (take("(")) return group(depth);
    if (take("[")) return of_characters(character_class());
    if (take(".")) return of_characters(inverse_of(kLineEnd));
    if (take("\\")) return of_characters(escape(false).set);
    if (at("*") || at("+") || at("?")) refuse("there is nothing to repeat");
    const char32_t c = character();
    return of_characters({{c, c}});
  }

  Regex group(int depth) {
    if (take("?")) {
      for (const std::string_view ahead : {"=", "!", "<=", "<!"})
        if (at(ahead)) refuse("look-ahead and look-behind are not supported");
      if (take("<")) {
        const std::size_t end = pattern_.find('>', place_);
        if (end == std::string_view::npos) refuse("the name of a group does not end");
        place_ = end + 1;
      } else if (!take(":")) {
        refuse("\"(?\" with flags is not supported");
      }
    }
    Regex all = alternatives(depth + 1);
    if (!take(")")) refuse("a group is not closed");
    return all;
  }

  struct Escape {
    CharacterSet set;
    bool one = false;  // character
  };
  static Escape single(char32_t c) { return {{{c, c}}, true}; }

  Escape escape(bool in_class) {
    const char32_t c = character();
    switch (c) {
      case 'd':
        return {kDigit};
      case 'D':
        return {inverse_of(kDigit)};
      case 'w':
        return {kWord};
      case 'W':
        return {inverse_of(kWord)};
      case 's':
        return {kWhite};
      case 'S':
        return {inverse_of(kWhite)};
      case 't':
        return single('\t');
      case 'n':
        return single('\n');
      case 'v':
        return single('\v');
      case 'f':
        return single('\f');
      case 'r':
        return single('\r');
      case 'x':
        return single(hex(2));
      case 'u':
        return single(unicode());
      case 'b':
        if (in_class) return single('\b');
        break;
      case '0':
        if (!more() || pattern_[place_] < '0' || pattern_[place_] > '9') return single(0);
        break;
      default:
        break;
    }
    const bool named = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (named) refuse(std::string("\\") + static_cast<char>(c) + " is not supported");
    return single(c);
  }
  char32_t hex(int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i) value = value * 16 + hex_digit();
    return value;
  }
  char32_t hex_digit() {
    static constexpr std::string_view kDigits = "0123456789abcdef0123456789ABCDEF";
    const std::size_t found = more() ? kDigits.find(pattern_[place_]) : std::string_view::npos;
    if (found == std::string_view::npos) refuse("expected a hexadecimal digit");
    ++place_;
    return static_cast<char32_t>(found % 16);
  }
  char32_t unicode() {
    char32_t value = 0;
    if (take("{")) {
      while (!take("}")) {
        value = value * 16 + hex_digit();
        if (value > 0x10FFFF) refuse("there is no such character");
      }
    } else {
      value = hex(4);
      if (value >= 0xD800 && value < 0xDC00 && take("\\u"))
        value = 0x10000 + ((value - 0xD800) << 10) + (hex(4) - 0xDC00);
    }
    if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) refuse("there is no such character");
    return value;
  }

  CharacterSet character_class() {
    const bool inverted = take("^");
    CharacterSet all;
    while (!take("]")) {
      const Escape low = class_member();
      if (!low.one || !at("-") || at("-]")) {
        all.insert(all.end(), low.set.begin(), low.set.end());
        continue;
      }
      (void)take("-");
      const Escape high = class_member();
      if (!high.one) refuse("a range ends in a class of characters");
      if (high.set[0].low < low.set[0].low) refuse("a range of characters is out of order");
      all.push_back({low.set[0].low, high.set[0].low});
    }
    CharacterSet others = inverse_of(std::move(all));
    return inverted ? others : inverse_of(std::move(others));
  }
  Escape class_member() { return take("\\") ? escape(true) : single(character()); }

  std::string_view pattern_;
  std::size_t place_ = 0;
};

}  // namespace

const CharacterSet& all_characters() {
  static const CharacterSet all = {{0, 0xD7FF}, {0xE000, 0x10FFFF}};
  return all;
}

CharacterSet inverse_of(CharacterSet characters) {
  characters.push_back({0xD800, 0xDFFF});
  std::sort(characters.begin(), characters.end());
  CharacterSet others;
  char32_t next = 0;  // the first character that is not yet known to be in a range
  for (const CharacterRange& range : characters) {
    if (range.low > next) others.push_back({next, range.low - 1});
    next = std::max<char32_t>(next, range.high + 1);
  }
  if (next <= 0x10FFFF) others.push_back({next, 0x10FFFF});
  return others;
}

Regex parse_regex(std::string_view pattern) {
  return Parser(pattern).whole();
}

}  // namespace attend::llm
