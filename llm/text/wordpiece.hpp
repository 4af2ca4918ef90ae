// WordPiece: the longest piece a word begins with, then the longest that goes on with it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "llm/text/piece_map.hpp"
#include "llm/text/pieces.hpp"
#include "llm/text/word_model.hpp"

namespace attend::llm {

class WordPiece : public WordModel {
 public:
  // `tokens` are ids of different pieces, which are copied. A word of more characters than `longest_word`, or one that
  // cannot be made of pieces, is `unknown`.
  WordPiece(const Pieces& pieces, std::vector<std::int32_t> tokens, std::string_view prefix, std::int32_t unknown,
            std::int64_t longest_word);
  void encode(std::string_view word, std::vector<std::int32_t>& tokens) const override;

 private:
  struct Match {
    std::size_t bytes = 0;  // 0: none
    std::int32_t token = -1;
  };
  // Sorted pieces first[b] to first[b + 1], less their first `skipped` bytes, begin with byte b.
  struct Range {
    std::size_t skipped = 0;
    std::array<std::uint32_t, 257> first{};
  };
  Range range_of(std::string_view prefix) const;
  Match longest(std::string_view text, const Range& range) const;

  std::vector<std::int32_t> tokens_;  // by their pieces in order
  Pieces sorted_;                     // of tokens_
  PieceMap words_;                    // of sorted_: most words are a piece
  Range beginnings_, continuations_;  // the latter have the prefix
  std::int32_t unknown_;
  std::int64_t longest_word_;
};

}  // namespace attend::llm
