// Vocabulary, merges and added tokens, checked and put together.
#include "llm/text/tokenizer_data.hpp"

#include <algorithm>
#include <utility>

#include "llm/text/bpe.hpp"
#include "llm/text/wordpiece.hpp"

namespace attend::llm {
namespace {

// WordPiece keeps its vocabulary in tries, at some 60 bytes for each byte of it; that of BERT for all languages has 1
// MiB.
constexpr std::size_t kLargestWordPiece = std::size_t{8} << 20;
// A word of so many bytes takes some 20 times its size to be merged; the longest of any model has 1,024.
constexpr std::size_t kLongestToken = std::size_t{1} << 16;
// The longest of any model has 60.
constexpr std::size_t kLongestAdded = 4096;
// Finding added tokens takes some 90 bytes for each byte of them; the most of any model are 100 KiB.
constexpr std::size_t kMostAddedBytes = std::size_t{1} << 18;

constexpr auto kPresent = TokenizerData::kPresent, kSpecial = TokenizerData::kSpecial, kAdded = TokenizerData::kAdded;

[[noreturn]] void refuse(const TokenizerPlan& plan, const std::string& text) {
  throw io::FileError(plan.what + ": " + text);
}

// Ids may leave holes, but not so many that a small file asks for much memory.
void check_id(const TokenizerPlan& plan, std::string_view text, std::int64_t id) {
  const std::size_t tokens = plan.vocabulary.size() + plan.added.size();
  const auto limit = static_cast<std::int64_t>(std::min<std::size_t>(tokens * 2 + 65536, std::size_t{1} << 30));
  if (id >= 0 && id < limit) return;
  refuse(plan,
         "token " + shown(text) + " has id " + std::to_string(id) + ", expected 0 to " + std::to_string(limit - 1));
}

void make_room(TokenizerData& data, const TokenizerPlan& plan) {
  if (plan.vocabulary.size() > kMostTokens) {
    refuse(plan, "the vocabulary has " + std::to_string(plan.vocabulary.size()) + " tokens, expected at most " +
                     std::to_string(kMostTokens));
  }
  std::int64_t size = 0;
  for (const VocabularyEntry& entry : plan.vocabulary) {
    if (entry.text.size() > kLongestToken) {
      refuse(plan, "token " + shown(entry.text) + " has " + std::to_string(entry.text.size()) +
                       " bytes, expected at most " + std::to_string(kLongestToken));
    }
    check_id(plan, entry.text, entry.id);
    size = std::max(size, entry.id + 1);
  }
  for (const AddedToken& token : plan.added) {
    check_id(plan, token.content, token.id);
    size = std::max(size, std::int64_t{token.id} + 1);
  }
  data.pieces.resize(static_cast<std::size_t>(size));
  data.kinds.resize(static_cast<std::size_t>(size), 0);
}

// By the text of the file, which is what `pieces` hold until the data is finished.
PieceMap read_vocabulary(TokenizerData& data, const TokenizerPlan& plan) {
  if (plan.vocabulary.empty()) refuse(plan, "the vocabulary is empty");
  PieceMap ids(plan.vocabulary.size() + plan.added.size());
  for (const VocabularyEntry& entry : plan.vocabulary) {
    const auto id = static_cast<std::size_t>(entry.id);
    if (data.kinds[id] != 0) {
      refuse(plan, "tokens " + shown(data.pieces[id]) + " and " + shown(entry.text) + " have the same id " +
                       std::to_string(entry.id));
    }
    if (const Token known = ids.find(data.pieces, entry.text); known >= 0) {
      refuse(plan, "token " + shown(entry.text) + " is there twice, as " + std::to_string(known) + " and as " +
                       std::to_string(entry.id));
    }
    data.kinds[id] = kPresent;
    data.pieces[id] = entry.text;
    ids.add(data.pieces, static_cast<Token>(entry.id));
  }
  return ids;
}

// The id of an added token is that of its text in the vocabulary, else the next one: Hugging Face goes by that and not
// by what the file says, so with a file that says otherwise nobody knows which is meant.
void read_added(TokenizerData& data, const TokenizerPlan& plan, PieceMap& ids) {
  auto next = static_cast<Token>(plan.vocabulary.size());
  std::size_t bytes = 0;
  for (const AddedToken& token : plan.added) {
    const std::string name = "added token " + shown(token.content);
    if (token.content.empty()) refuse(plan, "the added token of id " + std::to_string(token.id) + " is empty");
    if (token.content.size() > kLongestAdded) {
      refuse(plan, name + " has " + std::to_string(token.content.size()) + " bytes, expected at most " +
                       std::to_string(kLongestAdded));
    }
    bytes += token.content.size();
    if (bytes > kMostAddedBytes) {
      refuse(plan, name + " brings the added tokens to more than " + std::to_string(kMostAddedBytes) + " bytes");
    }
    std::uint8_t& kind = data.kinds[static_cast<std::size_t>(token.id)];
    const Token found = ids.find(data.pieces, token.content);
    if (token.id != (found < 0 ? next : found)) {
      refuse(plan, name + " has id " + std::to_string(token.id) + ", expected " +
                       (found < 0 ? std::to_string(next) + ", the next one"
                                  : std::to_string(found) + ", its id in the vocabulary"));
    }
    if ((kind & kAdded) != 0) refuse(plan, name + " is there twice");
    if (found < 0 && kind != 0) {
      refuse(plan, name + " has the id of " + shown(data.pieces[static_cast<std::size_t>(token.id)]) + ", " +
                       std::to_string(token.id));
    }
    next = std::max(next, token.id + 1);
    kind = static_cast<std::uint8_t>(kPresent | kAdded | (token.special ? kSpecial : 0));
    data.pieces[static_cast<std::size_t>(token.id)] = token.content;
    ids.add(data.pieces, token.id);
  }
  // Special ones first: of two that normalise to the same text, Hugging Face finds the one it put in first.
  for (const bool special : {true, false}) {
    for (const AddedToken& token : plan.added) {
      if (token.special != special) continue;
      if (token.normalized) {
        const std::string pattern = data.normalizer.apply(token.content);
        if (pattern.size() > kLongestAdded)
          refuse(plan, "added token " + shown(token.content) + " has " + std::to_string(pattern.size()) +
                           " bytes when it is normalised, expected at most " + std::to_string(kLongestAdded));
        data.added_normalized.add(pattern, token);
        data.pieces[static_cast<std::size_t>(token.id)] = pattern;  // it is decoded so, too
      } else {
        data.added.add(token.content, token);
      }
    }
  }
  data.added_normalized.finish();
  data.added.finish();
}

void index_pieces(TokenizerData& data) {
  data.by_piece = PieceMap(data.pieces.size());
  for (const std::uint8_t kind : {kAdded, kPresent}) {
    for (std::size_t id = 0; id < data.pieces.size(); ++id) {
      if ((data.kinds[id] & kind) != 0) data.by_piece.add(data.pieces, static_cast<Token>(id));
    }
  }
}

std::vector<BpeMerge> read_merges(const TokenizerData& data, const TokenizerPlan& plan, const BpePlan& bpe,
                                  const PieceMap& ids) {
  std::vector<BpeMerge> merges;
  merges.reserve(bpe.merges.size());
  std::string joined;
  for (const auto& pair : bpe.merges) {
    joined.assign(pair.first).append(pair.second);
    const auto find = [&](std::string_view text) {
      const Token found = ids.find(data.pieces, text);
      if (found < 0) {
        refuse(plan, "merge " + std::to_string(merges.size()) + ", " + shown(pair.first) + " with " +
                         shown(pair.second) + ": token " + shown(text) + " is not in the vocabulary");
      }
      return found;
    };
    const Token left = find(pair.first), right = find(pair.second);
    merges.push_back({left, right, find(joined)});
  }
  return merges;
}

}  // namespace

std::string shown(std::string_view text) {
  constexpr std::size_t kShown = 80;
  return text.size() <= kShown ? io::json_quoted(text) : io::json_quoted(text.substr(0, kShown)) + "...";
}

void finish_bpe(TokenizerData& data, const TokenizerPlan& plan, const BpePlan& bpe) {
  make_room(data, plan);
  PieceMap ids = read_vocabulary(data, plan);
  BpeParts parts;
  parts.merges = read_merges(data, plan, bpe, ids);
  parts.fuse_unknown = bpe.fuse_unknown;
  parts.ignore_merges = bpe.ignore_merges;
  if (!bpe.unknown.empty()) {
    const Token found = ids.find(data.pieces, bpe.unknown);
    if (found < 0) refuse(plan, "the unknown token " + shown(bpe.unknown) + " is not in the vocabulary");
    parts.unknown = found;
    data.special.unknown = found;
  }
  read_added(data, plan, ids);

  // From characters to the bytes they stand for. A token with other characters is never made of bytes.
  parts.byte_tokens.fill(-1);
  std::string bytes;
  for (const VocabularyEntry& entry : plan.vocabulary) {
    if (!bytes_of_byte_level(entry.text, bytes) || bytes.empty()) continue;
    const auto id = static_cast<Token>(entry.id);
    if (bytes.size() == 1) parts.byte_tokens[static_cast<unsigned char>(bytes[0])] = id;
    // A word is never looked up as a special token.
    if ((data.kinds[static_cast<std::size_t>(id)] & kSpecial) == 0) parts.words.push_back(id);
  }
  for (std::string& piece : data.pieces) {
    if (bytes_of_byte_level(piece, bytes)) piece = bytes;
  }
  index_pieces(data);
  data.decoder = DecoderKind::byte_level;
  data.model = std::make_unique<Bpe>(data.pieces, parts);
}

void finish_word_piece(TokenizerData& data, const TokenizerPlan& plan, const WordPiecePlan& word_piece) {
  std::size_t bytes = 0;
  for (const VocabularyEntry& entry : plan.vocabulary) bytes += entry.text.size();
  if (bytes > kLargestWordPiece) {
    refuse(plan, "the vocabulary has " + std::to_string(bytes) + " bytes, expected at most " +
                     std::to_string(kLargestWordPiece));
  }
  make_room(data, plan);
  PieceMap ids = read_vocabulary(data, plan);
  const Token unknown = ids.find(data.pieces, word_piece.unknown);
  if (unknown < 0) refuse(plan, "the unknown token " + shown(word_piece.unknown) + " is not in the vocabulary");
  data.special.unknown = unknown;
  std::vector<std::pair<std::string_view, Token>> vocabulary;
  vocabulary.reserve(plan.vocabulary.size());
  for (const VocabularyEntry& entry : plan.vocabulary)
    vocabulary.emplace_back(entry.text, static_cast<Token>(entry.id));
  data.model = std::make_unique<WordPiece>(vocabulary, word_piece.prefix, unknown, word_piece.longest_word);
  data.prefix = word_piece.prefix;
  data.decoder = DecoderKind::word_piece;
  read_added(data, plan, ids);
  index_pieces(data);
}

}  // namespace attend::llm
