// The distance between two words, in typing errors.
#include "io/closest.hpp"

#include <algorithm>
#include <cstddef>

namespace attend::io {
namespace {

constexpr std::size_t kLongest = 64;

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

// Letters added, left out, replaced, and neighbours swapped (Damerau and Levenshtein), whatever the case.
std::size_t slips(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  const auto same = [&](std::size_t i, std::size_t j) { return lower(a[i]) == lower(b[j]); };
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same(i - 1, j - 1) ? 0 : 1)});
      if (i > 1 && j > 1 && same(i - 1, j - 2) && same(i - 2, j - 1)) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    std::swap(before_last, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

// The parts between '-', '_' and spaces, in small letters.
std::vector<std::string> words_of(std::string_view name) {
  std::vector<std::string> words(1);
  for (const char c : name) {
    if (c != '-' && c != '_' && c != ' ')
      words.back() += lower(c);
    else if (!words.back().empty())
      words.emplace_back();
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

// Whether `typed` has all words of `name` and more: "learning-rate" of "rate".
bool extends(std::string_view typed, std::string_view name) {
  const std::vector<std::string> more = words_of(typed), fewer = words_of(name);
  return !fewer.empty() && more.size() > fewer.size() && std::ranges::all_of(fewer, [&](const std::string& word) {
    return word.size() > 2 && std::ranges::find(more, word) != more.end();
  });
}

// How far `typed` is from `name`. A beginning is as near as one slip: "gen" means "generate". So are, nearly, the
// name's words among others.
std::size_t distance(std::string_view typed, std::string_view name) {
  const std::size_t found = slips(typed, name);
  if (found > 1 && typed.size() >= 3 && name.starts_with(typed)) return 1;
  return found > 2 && extends(typed, name) ? 2 : found;
}

}  // namespace

std::string closest(std::string_view typed, std::span<const std::string> names) {
  if (typed.empty() || typed.size() > kLongest) return "";
  std::string best;
  std::size_t fewest = 1 + typed.size() / 3;  // one in a short word, one for every three letters of a long one
  if (typed.size() < 3) fewest = 1;
  for (const std::string& name : names) {
    if (name.size() > kLongest) continue;
    const std::size_t found = distance(typed, name);
    if (found > fewest || (found == fewest && !best.empty())) continue;
    best = name;
    fewest = found;
  }
  return best;
}

std::string did_you_mean(std::string_view typed, std::span<const std::string> names) {
  const std::string name = closest(typed, names);
  return name.empty() ? "" : "; did you mean '" + name + "'?";
}

}  // namespace attend::io
