// The patterns of the supported families, as scanners.
#include "llm/text/pre_tokenizer.hpp"

#include <array>
#include <utility>

#include "llm/text/unicode.hpp"

namespace attend::llm {
namespace {

using std::size_t;

constexpr std::array<std::pair<std::string_view, Split>, 5> kPatterns = {{
    {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", Split::gpt2},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     Split::llama3},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     Split::qwen2},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     Split::qwen35},
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     Split::tekken},
}};

// Each scanner below answers: where does the match that begins at `place` end? Every character is part of some match.
struct Scan {
  std::string_view text;

  CodePoint at(size_t place) const { return code_point(text, place); }
  std::uint8_t kind(size_t place) const { return place < text.size() ? traits(at(place).value) : 0; }
  bool is(size_t place, char c) const { return place < text.size() && text[place] == c; }
  bool newline(size_t place) const { return is(place, '\n') || is(place, '\r'); }

  // The end of a run of characters that have (or: have none of) the traits.
  size_t run(size_t place, int wanted) const {
    while (place < text.size()) {
      const CodePoint c = at(place);
      if ((traits(c.value) & wanted) == 0) break;
      place += c.bytes;
    }
    return place;
  }
  size_t run_without(size_t place, int unwanted) const {
    while (place < text.size()) {
      const CodePoint c = at(place);
      if ((traits(c.value) & unwanted) != 0) break;
      place += c.bytes;
    }
    return place;
  }

  // 's 't 'm 'd 're 've 'll; `place` if there is none.
  size_t contraction(size_t place, bool any_case) const {
    if (!is(place, '\'') || place + 1 >= text.size()) return place;
    const auto letter = [&](size_t i) {
      const char c = i < text.size() ? text[i] : '\0';
      return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    };
    const char first = letter(place + 1), second = letter(place + 2);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return place + 2;
    if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l')) {
      return place + 3;
    }
    if (any_case && at(place + 1).value == 0x17F) return place + 3;  // the long s is an s in another case
    return place;
  }

  // \s+(?!\S)|\s+: white space but for the last before a word, which belongs to the word.
  size_t spaces(size_t place) const {
    const size_t end = run(place, kSpace);
    if (end == text.size()) return end;
    const size_t last = previous_place(text, end);
    return last == place ? end : last;
  }
  // \s*[\r\n]+ first: up to the last line end among the white space.
  size_t lines_or_spaces(size_t place) const {
    size_t end = place, after = place;
    while (end < text.size()) {
      const CodePoint c = at(end);
      if ((traits(c.value) & kSpace) == 0) break;
      end += c.bytes;
      if (c.value == '\n' || c.value == '\r') after = end;
    }
    if (after > place) return after;
    return spaces_until(place, end);
  }
  size_t spaces_until(size_t place, size_t end) const {
    if (end == text.size()) return end;
    const size_t last = previous_place(text, end);
    return last == place ? end : last;
  }

  size_t gpt2(size_t place) const {
    const size_t short_form = contraction(place, false);
    if (short_form > place) return short_form;
    const size_t begin = is(place, ' ') ? place + 1 : place;
    if (begin < text.size()) {
      const std::uint8_t k = kind(begin);
      if ((k & kLetter) != 0) return run(begin, kLetter);
      if ((k & kNumber) != 0) return run(begin, kNumber);
      if ((k & kSpace) == 0) return run_without(begin, kLetter | kNumber | kSpace);
    }
    return spaces(place);
  }

  // Punctuation with a space before it and line ends (and `also`) behind it; `place` if there is none.
  size_t symbols(size_t place, int not_symbols, char also) const {
    const size_t begin = is(place, ' ') ? place + 1 : place;
    size_t end = run_without(begin, not_symbols);
    if (end == begin) return place;
    while (newline(end) || (also != '\0' && is(end, also))) ++end;
    return end;
  }

  template <int kDigits, int kWord>  // kWord: the traits of what words are made of
  size_t llama3(size_t place) const {
    const size_t short_form = contraction(place, true);
    if (short_form > place) return short_form;
    const CodePoint c = at(place);
    const std::uint8_t k = traits(c.value);
    if ((k & kWord) != 0) return run(place, kWord);
    if ((k & kNumber) != 0) {
      size_t end = place + c.bytes;
      for (int i = 1; i < kDigits && (kind(end) & kNumber) != 0; ++i) end += at(end).bytes;
      return end;
    }
    if (!newline(place) && (kind(place + c.bytes) & kWord) != 0) return run(place + c.bytes, kWord);
    const size_t end = symbols(place, kWord | kNumber | kSpace, '\0');
    return end > place ? end : lines_or_spaces(place);
  }

  // [upper]*[lower]+, where most scripts and the marks are both; `begin` if there is none. Greedy, so it gives back
  // capitals until a letter that can be the last is found.
  bool can_be_upper(size_t place) const {
    const std::uint8_t k = kind(place);
    return (k & (kLetter | kMark)) != 0 && (k & kLower) == 0;
  }
  bool can_be_lower(size_t place) const {
    const std::uint8_t k = kind(place);
    return (k & (kLetter | kMark)) != 0 && (k & kUpper) == 0;
  }
  size_t ends_small(size_t begin) const {
    size_t end = begin, best = begin;
    while (can_be_upper(end)) {
      const bool both = can_be_lower(end);
      end += at(end).bytes;
      if (both) best = end;
    }
    if (!can_be_lower(end)) return best;
    while (can_be_lower(end)) end += at(end).bytes;
    return end;
  }
  size_t begins_large(size_t begin) const {
    size_t end = begin;
    while (can_be_upper(end)) end += at(end).bytes;
    if (end == begin) return begin;
    while (can_be_lower(end)) end += at(end).bytes;
    return end;
  }
  size_t tekken(size_t place) const {
    const CodePoint c = at(place);
    const std::uint8_t k = traits(c.value);
    const bool may_lead = !newline(place) && (k & (kLetter | kNumber)) == 0;
    const size_t begin = place + c.bytes;
    for (const bool small : {true, false}) {
      if (may_lead) {
        const size_t end = small ? ends_small(begin) : begins_large(begin);
        if (end > begin) return end;
      }
      const size_t end = small ? ends_small(place) : begins_large(place);
      if (end > place) return end;
    }
    if ((k & kNumber) != 0) return begin;
    const size_t end = symbols(place, kLetter | kNumber | kSpace, '/');
    return end > place ? end : lines_or_spaces(place);
  }

  size_t digits(size_t place, bool individual) const {
    const bool numeric = is_numeric(at(place).value);
    size_t end = place + at(place).bytes;
    if (numeric && individual) return end;
    while (end < text.size() && is_numeric(at(end).value) == numeric) end += at(end).bytes;
    return end;
  }
};

template <class Next>
void cut(std::string_view text, PreTokenizer::Words& words, const Next& next) {
  for (size_t place = 0; place < text.size();) {
    const size_t end = next(place);
    words.push_back(text.substr(place, end - place));
    place = end;
  }
}

void cut_bert(std::string_view text, PreTokenizer::Words& words) {
  size_t begin = 0;
  const auto finish = [&](size_t end) {
    if (end > begin) words.push_back(text.substr(begin, end - begin));
  };
  for (size_t place = 0; place < text.size();) {
    const CodePoint c = code_point(text, place);
    const bool space = (traits(c.value) & kSpace) != 0;
    if (space || is_bert_punctuation(c.value)) {
      finish(place);
      if (!space) words.push_back(text.substr(place, c.bytes));
      begin = place + c.bytes;
    }
    place += c.bytes;
  }
  finish(text.size());
}

void apply(Split step, std::string_view text, PreTokenizer::Words& words, std::deque<std::string>& made) {
  const Scan scan{text};
  switch (step) {
    case Split::gpt2:
      return cut(text, words, [&](size_t p) { return scan.gpt2(p); });
    case Split::llama3:
      return cut(text, words, [&](size_t p) { return scan.llama3<3, kLetter>(p); });
    case Split::qwen2:
      return cut(text, words, [&](size_t p) { return scan.llama3<1, kLetter>(p); });
    case Split::qwen35:
      return cut(text, words, [&](size_t p) { return scan.llama3 < 1, kLetter | kMark > (p); });
    case Split::tekken:
      return cut(text, words, [&](size_t p) { return scan.tekken(p); });
    case Split::digits:
      return cut(text, words, [&](size_t p) { return scan.digits(p, false); });
    case Split::digits_individual:
      return cut(text, words, [&](size_t p) { return scan.digits(p, true); });
    case Split::bert:
      return cut_bert(text, words);
    case Split::prefix_space:
      if (text.starts_with(' ')) {
        words.push_back(text);
      } else {
        words.push_back(made.emplace_back(std::string(" ").append(text)));
      }
  }
}

}  // namespace

std::optional<Split> split_of_pattern(std::string_view regex) {
  for (const auto& [pattern, split] : kPatterns) {
    if (pattern == regex) return split;
  }
  return std::nullopt;
}

std::vector<std::string> known_patterns() {
  std::vector<std::string> all;
  for (const auto& [pattern, split] : kPatterns) all.emplace_back(pattern);
  return all;
}

void PreTokenizer::split(std::string_view text, Words& words, std::deque<std::string>& made) const {
  words.assign(1, text);
  Words before;
  for (const Split step : steps_) {
    std::swap(before, words);
    words.clear();
    for (const std::string_view word : before) apply(step, word, words, made);
  }
}

}  // namespace attend::llm
