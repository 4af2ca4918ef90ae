// Byte-level byte-pair encoding: a word's bytes, merged pair by pair in the order the pairs were learnt.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "llm/text/merge_table.hpp"
#include "llm/text/piece_map.hpp"
#include "llm/text/word_model.hpp"

namespace attend::llm {

// The characters that stand for bytes in the files of byte-level tokenizers: printable ones for themselves, the others
// from U+0100 on. The bytes of `text`, or false when another character is in it.
bool bytes_of_byte_level(std::string_view text, std::string& bytes);
std::string byte_level_of_bytes(std::string_view bytes);

struct BpeParts {
  std::array<std::int32_t, 256> byte_tokens;  // -1 where the vocabulary has none
  MergeTable merges;                          // the first is merged first
  std::vector<std::int32_t> words;            // tokens that a word may be as a whole
  std::int32_t unknown = -1;                  // for bytes without a token; -1: they are left out
  bool fuse_unknown = false;                  // one for a run of them
  bool ignore_merges = false;                 // a word that is in `words` is that token, whatever the merges say
};

class Bpe : public WordModel {
 public:
  Bpe(const Pieces& pieces, BpeParts parts);  // pieces must outlive it and not move
  void encode(std::string_view word, std::vector<std::int32_t>& tokens) const override;

 private:
  void start(std::string_view word, std::vector<std::int32_t>& tokens) const;  // appends the tokens of the bytes
  void merge(std::vector<std::int32_t>& tokens, std::size_t begin) const;      // tokens[begin..]
  std::size_t merge_short(std::span<std::int32_t> tokens) const;               // how many are left
  std::size_t merge_long(std::span<std::int32_t> tokens) const;

  const Pieces& pieces_;
  std::array<std::int32_t, 256> byte_tokens_;
  MergeTable merges_;
  PieceMap words_;  // words that merge into one token: most words take this way
  std::int32_t unknown_;
  bool fuse_unknown_;
};

}  // namespace attend::llm
