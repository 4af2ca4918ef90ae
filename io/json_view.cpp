// Checks JSON in one pass, and reads values of checked text.
#include "io/json_view.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include "base/keyed_hash.hpp"
#include "base/utf8.hpp"
#include "io/json_syntax.hpp"

namespace attend::io {
namespace {

bool is_space(char c) {
  return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// --- strings ---

// The four hexadecimal digits at `p`; -1: others.
int hex4(const char* p, const char* end) {
  if (end - p < 4) return -1;
  int value = 0;
  for (int i = 0; i < 4; ++i) {
    const char c = p[i];
    const int digit = is_digit(c) ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

constexpr bool is_high_surrogate(int unit) {
  return unit >= 0xD800 && unit <= 0xDBFF;
}
constexpr bool is_low_surrogate(int unit) {
  return unit >= 0xDC00 && unit <= 0xDFFF;
}

// The position after the escape at `p`; null where it is not one of JSON's.
const char* after_escape(const char* p, const char* end) {
  if (end - p < 2) return nullptr;
  if (p[1] != 'u') return std::string_view("\"\\/bfnrt").find(p[1]) == std::string_view::npos ? nullptr : p + 2;
  const int unit = hex4(p + 2, end);
  if (unit < 0 || is_low_surrogate(unit)) return nullptr;
  if (!is_high_surrogate(unit)) return p + 6;
  if (end - p < 12 || p[6] != '\\' || p[7] != 'u' || !is_low_surrogate(hex4(p + 8, end))) return nullptr;
  return p + 12;
}

// Appends what the escape at `p` of a checked string means; returns the position after it.
const char* unescape(const char* p, std::string& out) {
  switch (p[1]) {
    case 'b':
      out += '\b';
      return p + 2;
    case 'f':
      out += '\f';
      return p + 2;
    case 'n':
      out += '\n';
      return p + 2;
    case 'r':
      out += '\r';
      return p + 2;
    case 't':
      out += '\t';
      return p + 2;
    case 'u': {
      const int unit = hex4(p + 2, p + 6);
      if (!is_high_surrogate(unit)) return append_utf8(out, static_cast<char32_t>(unit)), p + 6;
      const int low = hex4(p + 8, p + 12);
      append_utf8(out, static_cast<char32_t>(0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00)));
      return p + 12;
    }
    default:
      out += p[1];
      return p + 2;
  }
}

// The closing quote of a checked string whose characters begin at `p`.
const char* closing_quote(const char* p) {
  while (*p != '"') p += *p == '\\' ? 2 : 1;
  return p;
}

// What the characters of a checked string mean.
std::string_view unescaped(std::string_view raw, std::string& buffer) {
  std::size_t escape = raw.find('\\');
  if (escape == std::string_view::npos) return raw;
  buffer.clear();
  const char *p = raw.data(), *const end = p + raw.size();
  for (; escape != std::string_view::npos; escape = std::string_view(p, end).find('\\')) {
    buffer.append(p, escape);
    p = unescape(p + escape, buffer);
  }
  buffer.append(p, end);
  return buffer;
}

// Whether the checked string whose characters begin at `p` means `text`.
bool means(const char* p, std::string_view text) {
  std::string character;
  while (*p != '"') {
    if (*p == '\\') {
      character.clear();
      p = unescape(p, character);
      if (!text.starts_with(character)) return false;
      text.remove_prefix(character.size());
    } else {
      if (text.empty() || *p++ != text.front()) return false;
      text.remove_prefix(1);
    }
  }
  return text.empty();
}

// --- checking ---

// The keys of one open object, by where their characters begin in the text.
class KeyTable {
 public:
  explicit KeyTable(const char* text) : text_(text) {}

  // False when the object has this key already. `at` is where its characters begin.
  bool add(const char* at, std::string_view key) {
    const auto place = static_cast<std::uint32_t>(at - text_);
    if (count_ < kFew) {
      const auto last = few_.begin() + static_cast<std::ptrdiff_t>(count_);
      if (std::any_of(few_.begin(), last, [&](std::uint32_t other) { return means(text_ + other, key); })) return false;
      few_[count_++] = place;
      return true;
    }
    if (count_ == kFew || (count_ + 1) * 4 > slots_.size() * 3) grow();
    std::uint32_t& slot = slots_[find(key)];
    if (slot != kNone) return false;
    slot = place;
    ++count_;
    return true;
  }

 private:
  static constexpr std::size_t kFew = 8;  // keys that are compared one by one
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

  std::size_t find(std::string_view key) const {
    std::size_t slot = hash_(key) & (slots_.size() - 1);
    while (slots_[slot] != kNone && !means(text_ + slots_[slot], key)) slot = (slot + 1) & (slots_.size() - 1);
    return slot;
  }
  void grow() {
    std::vector<std::uint32_t> old(few_.begin(), few_.end());
    if (!slots_.empty()) old = std::move(slots_);
    slots_.assign(std::bit_ceil(count_ * 2), kNone);
    std::string buffer;
    for (const std::uint32_t place : old) {
      if (place == kNone) continue;
      const char* at = text_ + place;
      std::size_t slot = hash_(unescaped({at, closing_quote(at)}, buffer)) & (slots_.size() - 1);
      while (slots_[slot] != kNone) slot = (slot + 1) & (slots_.size() - 1);
      slots_[slot] = place;
    }
  }

  const char* text_;
  KeyedHash hash_;
  std::size_t count_ = 0;
  std::array<std::uint32_t, kFew> few_{};
  std::vector<std::uint32_t> slots_;
};

// One pass over the text. Every error is found at the first byte that cannot go on.
class Checker {
 public:
  Checker(std::string_view text, const std::string& what, const JsonLimits& limits)
      : text_(text), at_(text.data()), end_(at_ + text.size()), what_(what), limits_(limits) {}

  std::string_view check() {
    if (text_.starts_with("\xEF\xBB\xBF")) at_ += 3;
    skip_space();
    const char* begin = at_;
    value(0);
    const char* end = at_;
    skip_space();
    if (at_ != end_) fail();
    return {begin, end};
  }

 private:
  // parse_json's parser holds a string several times over, so it is not asked about very long ones.
  static constexpr std::size_t kLongestToDescribe = std::size_t{1} << 20;

  [[noreturn]] void fail() {
    std::string error;
    if (longest_ <= kLongestToDescribe) error = json_syntax_error(text_);
    if (error.empty()) error = "syntax error (byte " + std::to_string(at_ - text_.data() + 1) + ")";
    refuse(error);
  }
  [[noreturn]] void refuse(const std::string& error) const { throw FileError(what_ + ": " + error); }

  void skip_space() {
    while (at_ != end_ && is_space(*at_)) ++at_;
  }
  char peek() const { return at_ == end_ ? '\0' : *at_; }  // the text has no zero bytes
  void expect(char c) {
    if (peek() != c) fail();
    ++at_;
  }

  bool closes(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }

  void count() {
    if (++values_ > limits_.values) refuse(json_too_many_values(limits_));
  }
  void value(int depth) {
    switch (peek()) {
      case '{':
        return object(depth);
      case '[':
        return array(depth);
      case '"':
        ++at_;
        string();
        return count();
      case 't':
        word("true");
        return count();
      case 'f':
        word("false");
        return count();
      case 'n':
        word("null");
        return count();
      default:
        number();
        return count();
    }
  }
  void open(int depth) {
    if (depth == limits_.depth) refuse(json_too_deep(limits_));
    count();
    ++at_;
    skip_space();
  }
  void array(int depth) {
    open(depth);
    if (closes(']')) return;
    for (;;) {
      value(depth + 1);
      skip_space();
      if (closes(']')) return;
      expect(',');
      skip_space();
    }
  }
  void object(int depth) {
    open(depth);
    if (closes('}')) return;
    KeyTable keys(text_.data());
    for (;;) {
      expect('"');
      const char* begin = at_;
      string();
      const std::string_view key = unescaped({begin, at_ - 1}, buffer_);
      if (!keys.add(begin, key)) refuse(json_repeated_key(key));
      skip_space();
      expect(':');
      skip_space();
      value(depth + 1);
      skip_space();
      if (closes('}')) return;
      expect(',');
      skip_space();
    }
  }

  void word(std::string_view expected) {
    if (!std::string_view(at_, end_).starts_with(expected)) fail();
    at_ += expected.size();
  }
  void digits() {
    if (!is_digit(peek())) fail();
    while (is_digit(peek())) ++at_;
  }
  void number() {
    if (peek() == '-') ++at_;
    if (peek() == '0')
      ++at_;
    else
      digits();
    if (peek() == '.') {
      ++at_;
      digits();
    }
    if (peek() == 'e' || peek() == 'E') {
      ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      digits();
    }
  }
  // Called after the opening quote; reads the closing one.
  void string() {
    const char* begin = at_;
    bool ascii = true;
    while (at_ != end_ && *at_ != '"') {
      const auto byte = static_cast<unsigned char>(*at_);
      if (byte < 0x20) fail_string(begin);
      ascii = ascii && byte < 0x80;
      if (byte != '\\') {
        ++at_;
      } else if (const char* after = after_escape(at_, end_)) {
        at_ = after;
      } else {
        fail_string(begin);
      }
    }
    if (at_ == end_ || (!ascii && !is_utf8({begin, at_}))) fail_string(begin);
    longest_ = std::max(longest_, static_cast<std::size_t>(at_ - begin));
    ++at_;
  }
  [[noreturn]] void fail_string(const char* begin) {
    longest_ = std::max(longest_, static_cast<std::size_t>(at_ - begin));
    fail();
  }

  std::string_view text_;
  const char *at_, *end_;
  const std::string& what_;
  JsonLimits limits_;
  std::size_t values_ = 0, longest_ = 0;  // the latter of strings, in bytes
  std::string buffer_;
};

// --- reading what is checked ---

// The position after the value that begins at `p`. The text ends at `end`.
const char* after_value(const char* p, const char* end) {
  if (*p == '"') return closing_quote(p + 1) + 1;
  if (*p != '[' && *p != '{') {
    while (p != end && *p != ',' && *p != ']' && *p != '}' && !is_space(*p)) ++p;
    return p;
  }
  for (int depth = 0;; ++p) {
    if (*p == '"') {
      p = closing_quote(p + 1);
    } else if (*p == '[' || *p == '{') {
      ++depth;
    } else if ((*p == ']' || *p == '}') && --depth == 0) {
      return p + 1;
    }
  }
}

}  // namespace

JsonCursor::JsonCursor(const JsonView& container) {
  if (!container.is_array() && !container.is_object()) return;
  members_ = container.is_object();
  at_ = container.text_.data() + 1;
  end_ = container.text_.data() + container.text_.size() - 1;
}

JsonView JsonCursor::take() {
  const char* begin = at_;
  at_ = after_value(at_, end_);
  return JsonView(std::string_view(begin, at_));
}

bool JsonCursor::next() {
  const auto skip_to = [&](char mark) {
    while (at_ != end_ && (is_space(*at_) || *at_ == mark)) ++at_;
  };
  skip_to(',');
  if (at_ == end_) return false;
  if (members_) {
    key_ = take();
    skip_to(':');
  }
  value_ = take();
  return true;
}

std::optional<bool> JsonView::boolean() const {
  if (text_.front() != 't' && text_.front() != 'f') return std::nullopt;
  return text_.front() == 't';
}

std::optional<std::int64_t> JsonView::integer() const {
  std::int64_t x = 0;
  const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), x);
  if (error != std::errc() || end != text_.data() + text_.size()) return std::nullopt;
  return x;
}

std::optional<double> JsonView::number() const {
  if (text_.front() != '-' && !is_digit(text_.front())) return std::nullopt;
  const double x = std::strtod(std::string(text_).c_str(), nullptr);
  return std::isinf(x) ? std::copysign(1e308, x) : x;
}

std::string_view JsonView::string(std::string& buffer) const {
  return is_string() ? unescaped(text_.substr(1, text_.size() - 2), buffer) : std::string_view();
}

std::string JsonView::string() const {
  std::string buffer;
  return std::string(string(buffer));
}

std::size_t JsonView::size() const {
  std::size_t count = 0;
  for (JsonCursor c(*this); c.next();) ++count;
  return count;
}

std::optional<JsonView> JsonView::find(std::string_view key) const {
  if (!is_object()) return std::nullopt;
  for (JsonCursor c(*this); c.next();)
    if (means(c.key().text_.data() + 1, key)) return c.value();
  return std::nullopt;
}

const char* JsonView::kind() const {
  switch (text_.front()) {
    case 'n':
      return "null";
    case 't':
    case 'f':
      return "a boolean";
    case '"':
      return "a string";
    case '[':
      return "an array";
    case '{':
      return "an object";
    default:
      return integer() ? "a whole number" : "a number";
  }
}

JsonView view_json(std::string_view text, const std::string& what, const JsonLimits& limits) {
  constexpr std::size_t kMostBytes = std::numeric_limits<std::uint32_t>::max();  // KeyTable has 32 bits for a position
  JsonLimits bounded = limits;
  bounded.bytes = std::min(limits.bytes, kMostBytes);
  check_json_text(text, what, bounded);
  return JsonView(Checker(text, what, limits).check());
}

}  // namespace attend::io
