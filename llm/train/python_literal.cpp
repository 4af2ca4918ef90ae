// One pass over the text; strings are decoded and quoted again.
#include "llm/train/python_literal.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <utility>

#include "base/utf8.hpp"
#include "io/json.hpp"

namespace attend::llm {
namespace {

class PythonReader {
 public:
  explicit PythonReader(std::string_view text) : text_(text) {}

  std::string json() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '\'' || c == '"') {
        string();
      } else if ((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z')) {
        word();
      } else {
        if (c == '{' && last_ == '}') out_ += ',';
        out_ += c == '(' ? '[' : c == ')' ? ']' : c;
        if (c != ' ' && c != '\n') last_ = c;
        ++at_;
      }
    }
    return std::move(out_);
  }

 private:
  void string() {
    const char quote = text_[at_++];
    std::string value;
    while (at_ < text_.size() && text_[at_] != quote) {
      if (text_[at_] == '\\' && at_ + 1 < text_.size())
        escape(value);
      else
        value += text_[at_++];
    }
    // A string that does not end stays without its quote: it is not JSON then.
    std::string quoted = io::json_quoted(value);
    if (at_ == text_.size()) quoted.pop_back();
    out_ += quoted;
    last_ = '"';
    ++at_;
  }

  void escape(std::string& value) {
    const char kind = text_[at_ + 1];
    at_ += 2;
    constexpr std::array<std::pair<char, char>, 7> kPlain = {
        {{'n', '\n'}, {'t', '\t'}, {'r', '\r'}, {'\\', '\\'}, {'\'', '\''}, {'"', '"'}, {'0', '\0'}}};
    for (const auto& [name, character] : kPlain)
      if (name == kind) return value.push_back(character);
    const std::size_t digits = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
    std::uint32_t code = 0;
    const char* end = text_.data() + std::min(text_.size(), at_ + digits);
    const auto read = std::from_chars(text_.data() + at_, end, code, 16);
    if (digits == 0 || read.ptr != text_.data() + at_ + digits || code > 0x10FFFF ||
        (code >= 0xD800 && code < 0xE000)) {
      value += '\\';  // Python keeps what it does not know
      value += kind;
      return;
    }
    append_utf8(value, code);
    at_ += digits;
  }

  void word() {
    std::size_t end = at_;
    while (end < text_.size() && ((text_[end] >= 'A' && text_[end] <= 'Z') || (text_[end] >= 'a' && text_[end] <= 'z')))
      ++end;
    const std::string_view name = text_.substr(at_, end - at_);
    constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kNames = {
        {{"None", "null"}, {"nan", "null"}, {"True", "true"}, {"False", "false"}}};
    std::string_view json = name;
    for (const auto& [python, known] : kNames)
      if (python == name) json = known;
    out_ += json;
    last_ = 'a';
    at_ = end;
  }

  std::string_view text_;
  std::string out_;
  std::size_t at_ = 0;
  char last_ = ' ';  // of what is not space
};

}  // namespace

std::string json_of_python(std::string_view text) {
  return PythonReader(text).json();
}

}  // namespace attend::llm
