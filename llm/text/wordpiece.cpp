// WordPiece by search in the sorted pieces: four bytes and one copy a piece, where a trie has a node for each byte.
#include "llm/text/wordpiece.hpp"

#include <algorithm>
#include <utility>

namespace attend::llm {

WordPiece::WordPiece(const Pieces& pieces, std::vector<std::int32_t> tokens, std::string_view prefix,
                     std::int32_t unknown, std::int64_t longest_word)
    : tokens_(std::move(tokens)), unknown_(unknown), longest_word_(longest_word) {
  const auto piece = [&](std::int32_t token) { return pieces[static_cast<std::size_t>(token)]; };
  std::sort(tokens_.begin(), tokens_.end(), [&](std::int32_t a, std::int32_t b) { return piece(a) < piece(b); });
  std::size_t bytes = 0;
  for (const std::int32_t token : tokens_) bytes += piece(token).size();
  sorted_ = Pieces(tokens_.size(), bytes);
  words_ = PieceMap(tokens_.size());
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    sorted_.set(i, piece(tokens_[i]));
    words_.add(sorted_, static_cast<std::int32_t>(i));
  }
  beginnings_ = range_of("");
  continuations_ = range_of(prefix);
}

WordPiece::Range WordPiece::range_of(std::string_view prefix) const {
  Range range{.skipped = prefix.size()};
  std::size_t at = 0;
  while (at < sorted_.size() && sorted_[at] <= prefix) ++at;  // nothing is left of the prefix itself
  for (unsigned byte = 0; byte < 256; ++byte) {
    range.first[byte] = static_cast<std::uint32_t>(at);
    const auto begins = [&](std::string_view piece) {
      return piece.starts_with(prefix) && static_cast<unsigned char>(piece[prefix.size()]) == byte;
    };
    while (at < sorted_.size() && begins(sorted_[at])) ++at;
  }
  range.first[256] = static_cast<std::uint32_t>(at);
  return range;
}

// The last piece in order that is not after the text is the longest, or shares with it what any shorter one can have.
WordPiece::Match WordPiece::longest(std::string_view text, const Range& range) const {
  const auto byte = static_cast<unsigned char>(text.front());
  const std::size_t first = range.first[byte];
  for (std::size_t last = range.first[byte + 1]; first < last && !text.empty();) {
    std::size_t low = first;  // the first piece that is after the text
    for (std::size_t high = last; low < high;) {
      const std::size_t middle = low + (high - low) / 2;
      if (sorted_[middle].substr(range.skipped) <= text)
        low = middle + 1;
      else
        high = middle;
    }
    if (low == first) break;
    last = low - 1;
    const std::string_view piece = sorted_[last].substr(range.skipped);
    const auto [end, ignored] = std::mismatch(piece.begin(), piece.end(), text.begin(), text.end());
    if (end == piece.end()) return {piece.size(), tokens_[last]};
    text = text.substr(0, static_cast<std::size_t>(end - piece.begin()));
  }
  return {};
}

void WordPiece::encode(std::string_view word, std::vector<std::int32_t>& tokens) const {
  const auto characters = std::count_if(word.begin(), word.end(), [](char c) { return (c & 0xC0) != 0x80; });
  const std::size_t before = tokens.size();
  bool whole = characters <= longest_word_;
  if (const std::int32_t found = words_.find(sorted_, word); whole && !word.empty() && found >= 0)
    return tokens.push_back(tokens_[static_cast<std::size_t>(found)]);
  for (std::string_view rest = word; whole && !rest.empty();) {
    const Match match = longest(rest, rest.size() == word.size() ? beginnings_ : continuations_);
    whole = match.bytes > 0;
    if (whole) tokens.push_back(match.token);
    rest.remove_prefix(match.bytes);
  }
  if (whole) return;
  tokens.resize(before);
  tokens.push_back(unknown_);
}

}  // namespace attend::llm
