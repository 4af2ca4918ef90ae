// What a tokenizer is made of, however its file spells it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "llm/text/added_tokens.hpp"
#include "llm/text/normalizer.hpp"
#include "llm/text/piece_map.hpp"
#include "llm/text/pieces.hpp"
#include "llm/text/pre_tokenizer.hpp"
#include "llm/text/tokenizer.hpp"
#include "llm/text/word_model.hpp"

namespace attend::llm {

enum class DecoderKind { byte_level, word_piece };

struct TokenizerData {
  TokenizerData() = default;
  TokenizerData(const TokenizerData&) = delete;  // the maps and the model look into `pieces`
  TokenizerData& operator=(const TokenizerData&) = delete;

  Pieces pieces;                    // by id, as decode() joins them
  std::vector<std::uint8_t> kinds;  // by id: kPresent and the like, 0 for an id without a token
  PieceMap by_piece;                // added tokens before others of the same bytes
  Normalizer normalizer;
  AddedTokens added, added_normalized;  // looked for in the text as it is, and in the normalised text
  PreTokenizer pre_tokenizer;
  std::unique_ptr<const WordModel> model;
  std::vector<Token> before, after;  // what encode() puts around a text
  DecoderKind decoder = DecoderKind::byte_level;
  std::string prefix = "##";  // of continuations, for the WordPiece decoder
  bool cleanup = false;       // the same decoder: no space before punctuation
  SpecialTokens special;
  std::string chat_template;

  static constexpr std::uint8_t kPresent = 1, kSpecial = 2, kAdded = 4;
  bool present(Token token) const {
    return token >= 0 && static_cast<std::size_t>(token) < kinds.size() && kinds[static_cast<std::size_t>(token)] != 0;
  }
  // What the token adds to decoded text; `first`: nothing stands before it.
  std::string decoded(Token token, bool first) const;
};

// A text from a file, for a message: quoted, and not too long.
std::string shown(std::string_view text);

// Twice the largest vocabulary and the longest list of merges there are: what bounds the memory of a file.
inline constexpr std::size_t kMostTokens = std::size_t{1} << 19, kMostMerges = std::size_t{1} << 20;

// What both kinds of file boil down to; finish_...() make the data of it. The vocabulary and the merges are read from
// the file each time they are needed: copies would take more than the finished tokenizer.
struct TokenizerPlan {
  using TakeToken = std::function<void(std::string_view text, std::int64_t id)>;  // as the file spells it

  std::string what;                                  // the file, for errors
  std::size_t tokens = 0;                            // in the vocabulary
  std::function<void(const TakeToken&)> each_token;  // of the vocabulary, in the order of the file
  std::vector<AddedToken> added;

  // Keeps added tokens until they exceed what finish_...() accepts.
  void add(AddedToken token);

 private:
  std::size_t added_bytes_ = 0;
};
struct BpePlan {
  using TakeMerge = std::function<void(std::string_view left, std::string_view right)>;

  std::size_t merges = 0;
  std::function<void(const TakeMerge&)> each_merge;  // the first is merged first; a pair given twice has its last rank
  std::string unknown;                               // "": none
  bool fuse_unknown = false, ignore_merges = false;
};
struct WordPiecePlan {
  std::string unknown = "[UNK]", prefix = "##";
  std::int64_t longest_word = 100;
};
// They fill in pieces, kinds, by_piece, added tokens (with data.normalizer) and the model. FileError for ids out of
// range or given twice, merges of tokens that are not there, and the like.
void finish_bpe(TokenizerData& data, const TokenizerPlan& plan, const BpePlan& bpe);
void finish_word_piece(TokenizerData& data, const TokenizerPlan& plan, const WordPiecePlan& word_piece);

// Not const yet: a folder and a GGUF file know more than tokenizer.json, whose text this is.
std::unique_ptr<TokenizerData> tokenizer_data_from_json(std::string_view json, const std::string& what);

}  // namespace attend::llm
