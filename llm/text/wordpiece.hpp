// WordPiece: the longest piece a word begins with, then the longest that goes on with it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "llm/text/trie.hpp"
#include "llm/text/word_model.hpp"

namespace attend::llm {

class WordPiece : public WordModel {
 public:
  // A word of more characters than `longest_word`, or one that cannot be made of pieces, is `unknown`.
  WordPiece(std::span<const std::pair<std::string_view, std::int32_t>> vocabulary, std::string_view prefix,
            std::int32_t unknown, std::int64_t longest_word);
  void encode(std::string_view word, std::vector<std::int32_t>& tokens) const override;

 private:
  Trie beginnings_, continuations_;  // the latter without their prefix
  std::int32_t unknown_;
  std::int64_t longest_word_;
};

}  // namespace attend::llm
