// WordPiece over two tries: words and continuations.
#include "llm/text/wordpiece.hpp"

#include <algorithm>

namespace attend::llm {

WordPiece::WordPiece(std::span<const std::pair<std::string_view, std::int32_t>> vocabulary, std::string_view prefix,
                     std::int32_t unknown, std::int64_t longest_word)
    : unknown_(unknown), longest_word_(longest_word) {
  for (const auto& [piece, id] : vocabulary) {
    if (!piece.empty()) beginnings_.add(piece, id);
    if (piece.starts_with(prefix) && piece.size() > prefix.size()) continuations_.add(piece.substr(prefix.size()), id);
  }
}

void WordPiece::encode(std::string_view word, std::vector<std::int32_t>& tokens) const {
  const auto characters = std::count_if(word.begin(), word.end(), [](char c) { return (c & 0xC0) != 0x80; });
  const std::size_t before = tokens.size();
  bool whole = characters <= longest_word_;
  for (std::string_view rest = word; whole && !rest.empty();) {
    const Trie::Match match = (rest.size() == word.size() ? beginnings_ : continuations_).longest(rest);
    whole = match.bytes > 0;
    if (whole) tokens.push_back(match.value);
    rest.remove_prefix(match.bytes);
  }
  if (whole) return;
  tokens.resize(before);
  tokens.push_back(unknown_);
}

}  // namespace attend::llm
