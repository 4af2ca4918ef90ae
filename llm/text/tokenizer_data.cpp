// Vocabulary, merges and added tokens, checked and put together.
#include "llm/text/tokenizer_data.hpp"

#include <algorithm>
#include <utility>

#include "io/json.hpp"
#include "llm/text/bpe.hpp"
#include "llm/text/wordpiece.hpp"

namespace attend::llm {
namespace {

// That of BERT for all languages has 1 MiB.
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
  const std::size_t tokens = plan.tokens + plan.added.size();
  const auto limit =
      static_cast<std::int64_t>(std::min<std::size_t>(tokens * 2 + 65536, std::size_t{MergeTable::kMostTokens}));
  if (id >= 0 && id < limit) return;
  refuse(plan,
         "token " + shown(text) + " has id " + std::to_string(id) + ", expected 0 to " + std::to_string(limit - 1));
}

void make_room(TokenizerData& data, const TokenizerPlan& plan) {
  if (plan.tokens > kMostTokens) {
    refuse(plan, "the vocabulary has " + std::to_string(plan.tokens) + " tokens, expected at most " +
                     std::to_string(kMostTokens));
  }
  std::int64_t size = 0;
  std::size_t bytes = 0;
  plan.each_token([&](std::string_view text, std::int64_t id) {
    if (text.size() > kLongestToken) {
      refuse(plan, "token " + shown(text) + " has " + std::to_string(text.size()) + " bytes, expected at most " +
                       std::to_string(kLongestToken));
    }
    check_id(plan, text, id);
    size = std::max(size, id + 1);
    bytes += text.size();
  });
  for (const AddedToken& token : plan.added) {
    check_id(plan, token.content, token.id);
    size = std::max(size, std::int64_t{token.id} + 1);
    bytes += std::min(token.content.size(), kLongestAdded);
  }
  data.pieces = Pieces(static_cast<std::size_t>(size), bytes);
  data.kinds.resize(static_cast<std::size_t>(size), 0);
}

// By the text of the file, which is what `pieces` hold until the data is finished.
PieceMap read_vocabulary(TokenizerData& data, const TokenizerPlan& plan) {
  if (plan.tokens == 0) refuse(plan, "the vocabulary is empty");
  PieceMap ids(plan.tokens + plan.added.size());
  plan.each_token([&](std::string_view text, std::int64_t number) {
    const auto id = static_cast<std::size_t>(number);
    if (data.kinds[id] != 0) {
      refuse(plan, "tokens " + shown(data.pieces[id]) + " and " + shown(text) + " have the same id " +
                       std::to_string(number));
    }
    if (const Token known = ids.find(data.pieces, text); known >= 0) {
      refuse(plan, "token " + shown(text) + " is there twice, as " + std::to_string(known) + " and as " +
                       std::to_string(number));
    }
    data.kinds[id] = kPresent;
    data.pieces.set(id, text);
    ids.add(data.pieces, static_cast<Token>(number));
  });
  return ids;
}

// The id of an added token is that of its text in the vocabulary, else the next one: Hugging Face goes by that and not
// by what the file says, so with a file that says otherwise nobody knows which is meant.
void read_added(TokenizerData& data, const TokenizerPlan& plan, PieceMap& ids) {
  auto next = static_cast<Token>(plan.tokens);
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
    data.pieces.set(static_cast<std::size_t>(token.id), token.content);
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
        data.pieces.set(static_cast<std::size_t>(token.id), pattern);  // it is decoded so, too
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

MergeTable read_merges(const TokenizerData& data, const TokenizerPlan& plan, const BpePlan& bpe, const PieceMap& ids) {
  MergeTable merges(bpe.merges);
  std::string joined;
  bpe.each_merge([&](std::string_view left, std::string_view right) {
    joined.assign(left).append(right);
    const auto find = [&](std::string_view text) {
      const Token found = ids.find(data.pieces, text);
      if (found < 0) {
        refuse(plan, "merge " + std::to_string(merges.size()) + ", " + shown(left) + " with " + shown(right) +
                         ": token " + shown(text) + " is not in the vocabulary");
      }
      return found;
    };
    const Token first = find(left), second = find(right);
    merges.add(first, second, find(joined));
  });
  return merges;
}

// All but the parts that need characters as bytes. Ids go by the texts of the file, and are not needed afterwards.
BpeParts read_parts(TokenizerData& data, const TokenizerPlan& plan, const BpePlan& bpe) {
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
  return parts;
}

}  // namespace

std::string shown(std::string_view text) {
  constexpr std::size_t kShown = 80;
  return text.size() <= kShown ? io::json_quoted(text) : io::json_quoted(text.substr(0, kShown)) + "...";
}

void TokenizerPlan::add(AddedToken token) {
  if (added_bytes_ > kMostAddedBytes || added.size() > kMostAddedBytes) return;
  added_bytes_ += token.content.size();
  added.push_back(std::move(token));
}

void finish_bpe(TokenizerData& data, const TokenizerPlan& plan, const BpePlan& bpe) {
  make_room(data, plan);
  BpeParts parts = read_parts(data, plan, bpe);
  // From characters to the bytes they stand for. A token with other characters is never made of bytes.
  parts.byte_tokens.fill(-1);
  parts.words.reserve(plan.tokens);
  std::string bytes;
  plan.each_token([&](std::string_view text, std::int64_t number) {
    if (!bytes_of_byte_level(text, bytes) || bytes.empty()) return;
    const auto id = static_cast<Token>(number);
    if (bytes.size() == 1) parts.byte_tokens[static_cast<unsigned char>(bytes[0])] = id;
    // A word is never looked up as a special token.
    if ((data.kinds[static_cast<std::size_t>(id)] & kSpecial) == 0) parts.words.push_back(id);
  });
  for (std::size_t id = 0; id < data.pieces.size(); ++id) {
    if (bytes_of_byte_level(data.pieces[id], bytes)) data.pieces.set(id, bytes);
  }
  index_pieces(data);
  data.decoder = DecoderKind::byte_level;
  data.model = std::make_unique<Bpe>(data.pieces, std::move(parts));
}

void finish_word_piece(TokenizerData& data, const TokenizerPlan& plan, const WordPiecePlan& word_piece) {
  std::size_t bytes = 0;
  plan.each_token([&](std::string_view text, std::int64_t) { bytes += text.size(); });
  if (bytes > kLargestWordPiece) {
    refuse(plan, "the vocabulary has " + std::to_string(bytes) + " bytes, expected at most " +
                     std::to_string(kLargestWordPiece));
  }
  make_room(data, plan);
  PieceMap ids = read_vocabulary(data, plan);
  const Token unknown = ids.find(data.pieces, word_piece.unknown);
  if (unknown < 0) refuse(plan, "the unknown token " + shown(word_piece.unknown) + " is not in the vocabulary");
  data.special.unknown = unknown;
  std::vector<Token> vocabulary;
  vocabulary.reserve(plan.tokens);
  plan.each_token([&](std::string_view, std::int64_t id) { vocabulary.push_back(static_cast<Token>(id)); });
  data.model = std::make_unique<WordPiece>(data.pieces, std::move(vocabulary), word_piece.prefix, unknown,
                                           word_piece.longest_word);
  data.prefix = word_piece.prefix;
  data.decoder = DecoderKind::word_piece;
  read_added(data, plan, ids);
  index_pieces(data);
}

}  // namespace attend::llm
