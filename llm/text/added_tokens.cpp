// Finding the added tokens of a text.
#include "llm/text/added_tokens.hpp"

#include <algorithm>
#include <utility>

#include "llm/text/unicode.hpp"

namespace attend::llm {

void AddedTokens::add(std::string_view pattern, AddedToken token) {
  if (pattern.empty()) return;
  trie_.add(pattern, static_cast<std::int32_t>(tokens_.size()));
  tokens_.push_back(std::move(token));
}

bool AddedTokens::alone(std::string_view text, std::size_t begin, std::size_t end) const {
  if (begin > 0 && is_word(code_point(text, previous_place(text, begin)).value)) return false;
  return end >= text.size() || !is_word(code_point(text, end).value);
}

void AddedTokens::take(std::string_view text, std::size_t begin, std::size_t end, const AddedToken& token,
                       std::size_t& done, std::vector<Segment>& segments) const {
  if (token.single_word && !alone(text, begin, end)) return;
  if (token.lstrip) {
    while (begin > done) {
      const std::size_t place = previous_place(text, begin);
      if (place < done || (traits(code_point(text, place).value) & kSpace) == 0) break;
      begin = place;
    }
    begin = std::max(begin, done);
  }
  if (token.rstrip) {
    while (end < text.size() && (traits(code_point(text, end).value) & kSpace) != 0) end += code_point(text, end).bytes;
  }
  if (begin > done) segments.push_back({done, begin, -1});
  segments.push_back({begin, end, token.id});
  done = end;
}

void AddedTokens::split(std::string_view text, bool parse_special, std::vector<Segment>& segments) const {
  segments.clear();
  std::size_t done = 0;
  for (std::size_t place = 0; place < text.size();) {
    const Trie::Match match = trie_.may_begin(text[place]) ? trie_.longest(text.substr(place)) : Trie::Match{};
    if (match.bytes == 0) {
      ++place;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<std::size_t>(match.value)];
    if (parse_special || !token.special) take(text, place, place + match.bytes, token, done, segments);
    place += match.bytes;
  }
  if (done < text.size() || text.empty()) segments.push_back({done, text.size(), -1});
}

void AddedTokens::split(std::string_view text, std::span<const ByteRange> trusted,
                        std::vector<Segment>& segments) const {
  segments.clear();
  std::size_t done = 0;
  auto range = trusted.begin();
  for (std::size_t place = 0; place < text.size();) {
    while (range != trusted.end() && range->end <= place) ++range;
    const std::size_t room = range != trusted.end() && range->begin <= place ? range->end - place : 0;
    Trie::Match match;
    if (trie_.may_begin(text[place])) {
      match = trie_.longest(text.substr(place), [&](std::size_t bytes, std::int32_t value) {
        return bytes <= room || !tokens_[static_cast<std::size_t>(value)].special;
      });
    }
    if (match.bytes == 0) {
      ++place;
      continue;
    }
    take(text, place, place + match.bytes, tokens_[static_cast<std::size_t>(match.value)], done, segments);
    place += match.bytes;
  }
  if (done < text.size() || text.empty()) segments.push_back({done, text.size(), -1});
}

}  // namespace attend::llm
