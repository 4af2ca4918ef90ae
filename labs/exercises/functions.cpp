// Finding the functions that a C++ source defines, in one pass from the front to the end.
#include <algorithm>
#include <array>
#include <string_view>

#include "labs/exercises/check.hpp"

namespace attend::labs {
namespace {

bool in_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

// Words and signs, without comments and texts. A text counts as a sign.
class Scanner {
 public:
  explicit Scanner(std::string_view source) : rest_(source) {}

  // Empty: the end.
  std::string_view next() {
    skip_space();
    if (rest_.empty()) return {};
    if (in_word(rest_.front())) return word();
    if (rest_.front() == '"' || rest_.front() == '\'') return quoted();
    return take(1);
  }

 private:
  std::string_view take(std::size_t count) {
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(taken.size());
    return taken;
  }
  void skip_behind(std::string_view end, std::size_t from) {
    const std::size_t found = rest_.find(end, from);
    take(found == std::string_view::npos ? rest_.size() : found + end.size());
  }
  void skip_space() {
    for (;;) {
      const auto text = std::find_if_not(rest_.begin(), rest_.end(), is_space);
      take(static_cast<std::size_t>(text - rest_.begin()));
      if (rest_.starts_with("//"))
        skip_behind("\n", 2);
      else if (rest_.starts_with("/*"))
        skip_behind("*/", 2);
      else
        return;
    }
  }
  // A number may hold ' between its digits, and a text may have a prefix.
  std::string_view word() {
    const bool number = rest_.front() >= '0' && rest_.front() <= '9';
    std::size_t size = 0;
    while (size < rest_.size() && (in_word(rest_[size]) || (number && rest_[size] == '\'' && size + 1 < rest_.size() &&
                                                            in_word(rest_[size + 1]))))
      ++size;
    const std::string_view found = take(size);
    constexpr std::array<std::string_view, 5> kRaw = {"R", "LR", "uR", "UR", "u8R"};
    if (rest_.starts_with('"') && std::find(kRaw.begin(), kRaw.end(), found) != kRaw.end()) return raw_text();
    return found;
  }
  std::string_view quoted() {
    const char quote = rest_.front();
    std::size_t size = 1;
    for (; size < rest_.size() && rest_[size] != quote && rest_[size] != '\n'; ++size)
      if (rest_[size] == '\\') ++size;
    take(size + 1);
    return "\"";
  }
  std::string_view raw_text() {
    constexpr std::size_t kLongestDelimiter = 16;
    const std::size_t open = rest_.substr(0, kLongestDelimiter + 2).find('(');
    if (open == std::string_view::npos) return quoted();
    skip_behind(")" + std::string(rest_.substr(1, open - 1)) + "\"", open);
    return "\"";
  }

  std::string_view rest_;
};

bool is_defined(std::string_view before, std::string_view word, std::string_view after, const std::string& name) {
  if (word != name) return false;
  if (name == "KVCache") return before == "struct" || before == "class";
  return before == "void" && after == "(";
}

}  // namespace

std::vector<std::string> functions_in(const std::string& source) {
  std::vector<std::string> found;
  Scanner scanner(source);
  std::string_view before, word = scanner.next();
  while (!word.empty()) {
    const std::string_view after = scanner.next();
    for (const Exercise& e : all_exercises())
      if (is_defined(before, word, after, e.name) && std::find(found.begin(), found.end(), e.name) == found.end())
        found.push_back(e.name);
    before = word;
    word = after;
  }
  return found;
}

}  // namespace attend::labs
