// Finding the added tokens of a text.
#include "llm/text/added_tokens.hpp"

#include <algorithm>
#include <utility>

#include "llm/text/unicode.hpp"

namespace attend::llm {

void AddedTokens::add(std::string_view pattern, AddedToken token) {
  if (pattern.empty()) return;
  finder_.add(pattern, static_cast<std::int32_t>(tokens_.size()), token.special);
  tokens_.push_back(std::move(token));
}

bool AddedTokens::alone(std::string_view text, std::size_t begin, std::size_t end) {
  if (begin > 0 && is_word(code_point(text, previous_place(text, begin)).value)) return false;
  return end >= text.size() || !is_word(code_point(text, end).value);
}

// Many tokens can take the same run of white space; it is read once.
std::size_t AddedTokens::after_spaces(Cut& cut, std::size_t place) {
  if (place >= cut.spaces_begin && place < cut.spaces_end) return cut.spaces_end;
  cut.spaces_begin = place;
  while (place < cut.text.size()) {
    const CodePoint c = code_point(cut.text, place);
    if ((traits(c.value) & kSpace) == 0) break;
    place += c.bytes;
  }
  return cut.spaces_end = place;
}

void AddedTokens::take(Cut& cut, std::size_t begin, std::size_t end, const AddedToken& token) const {
  if (token.single_word && !alone(cut.text, begin, end)) return;
  if (token.lstrip) {
    while (begin > cut.done) {
      const std::size_t place = previous_place(cut.text, begin);
      if (place < cut.done || (traits(code_point(cut.text, place).value) & kSpace) == 0) break;
      begin = place;
    }
    begin = std::max(begin, cut.done);
  }
  if (token.rstrip) end = after_spaces(cut, end);
  if (begin > cut.done) cut.segments.push_back({cut.done, begin, -1});
  cut.segments.push_back({begin, end, token.id});
  cut.done = end;
}

template <class Room, class Skip>
void AddedTokens::split(std::string_view text, const Room& room, const Skip& skip,
                        std::vector<Segment>& segments) const {
  segments.clear();
  Cut cut{.text = text, .segments = segments};
  std::vector<PatternFinder::Start> starts;
  finder_.starts(text, starts);
  std::size_t next = 0;  // tokens do not overlap
  for (auto start = starts.rbegin(); start != starts.rend(); ++start) {
    if (start->place < next) continue;
    const Trie::Match match = finder_.longest(*start, room(start->place));
    if (match.bytes == 0) continue;
    next = start->place + match.bytes;
    const AddedToken& token = tokens_[static_cast<std::size_t>(match.value)];
    if (!skip(token)) take(cut, start->place, next, token);
  }
  if (cut.done < text.size() || text.empty()) segments.push_back({cut.done, text.size(), -1});
}

void AddedTokens::split(std::string_view text, bool parse_special, std::vector<Segment>& segments) const {
  split(
      text, [&](std::size_t) { return text.size(); },
      [&](const AddedToken& token) { return token.special && !parse_special; }, segments);
}

void AddedTokens::split(std::string_view text, std::span<const ByteRange> trusted,
                        std::vector<Segment>& segments) const {
  auto range = trusted.begin();
  const auto room = [&](std::size_t place) {
    while (range != trusted.end() && range->end <= place) ++range;
    return range != trusted.end() && range->begin <= place ? range->end - place : 0;
  };
  split(text, room, [](const AddedToken&) { return false; }, segments);
}

}  // namespace attend::llm
