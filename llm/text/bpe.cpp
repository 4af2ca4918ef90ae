// Merging: few symbols by search, many with a heap, so that time grows as n log n for any word.
#include "llm/text/bpe.hpp"

#include <functional>
#include <queue>
#include <utility>

#include "llm/text/unicode.hpp"

namespace attend::llm {
namespace {

constexpr std::size_t kShort = 40;  // symbols up to which a search beats a heap

// By character below U+0144: its byte, or -1.
constexpr std::array<std::int16_t, 0x144> kByteOf = [] {
  std::array<std::int16_t, 0x144> bytes{};
  for (std::int16_t& b : bytes) b = -1;
  std::size_t next = 0x100;
  for (std::int16_t b = 0; b < 256; ++b) {
    const bool itself = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    bytes[itself ? static_cast<std::size_t>(b) : next++] = b;
  }
  return bytes;
}();

}  // namespace

bool bytes_of_byte_level(std::string_view text, std::string& bytes) {
  bytes.clear();
  for (std::size_t place = 0; place < text.size();) {
    const CodePoint c = code_point(text, place);
    if (c.value >= kByteOf.size() || kByteOf[c.value] < 0) return false;
    bytes += static_cast<char>(kByteOf[c.value]);
    place += c.bytes;
  }
  return true;
}

std::string byte_level_of_bytes(std::string_view bytes) {
  static const std::array<std::string, 256> spelled = [] {
    std::array<std::string, 256> of;
    for (std::uint32_t c = 0; c < kByteOf.size(); ++c)
      if (kByteOf[c] >= 0) append_utf8(of[static_cast<std::size_t>(kByteOf[c])], c);
    return of;
  }();
  std::string text;
  for (const char byte : bytes) text += spelled[static_cast<unsigned char>(byte)];
  return text;
}

Bpe::Bpe(const Pieces& pieces, BpeParts parts)
    : pieces_(pieces),
      byte_tokens_(parts.byte_tokens),
      merges_(std::move(parts.merges)),
      unknown_(parts.unknown),
      fuse_unknown_(parts.fuse_unknown) {
  PieceMap words(parts.words.size());  // filled aside: encode() must not see it yet
  std::vector<std::int32_t> tokens;
  for (const std::int32_t id : parts.words) {
    tokens.clear();
    if (!parts.ignore_merges) Bpe::encode(pieces[static_cast<std::size_t>(id)], tokens);
    if (parts.ignore_merges || (tokens.size() == 1 && tokens[0] == id)) words.add(pieces, id);
  }
  words_ = std::move(words);
}

void Bpe::encode(std::string_view word, std::vector<std::int32_t>& tokens) const {
  const std::int32_t whole = words_.find(pieces_, word);
  if (whole >= 0) {
    tokens.push_back(whole);
    return;
  }
  const std::size_t begin = tokens.size();
  start(word, tokens);
  merge(tokens, begin);
}

void Bpe::start(std::string_view word, std::vector<std::int32_t>& tokens) const {
  bool after_unknown = false;
  for (const char c : word) {
    const std::int32_t token = byte_tokens_[static_cast<unsigned char>(c)];
    if (token >= 0) {
      tokens.push_back(token);
    } else if (unknown_ >= 0 && !(after_unknown && fuse_unknown_)) {
      tokens.push_back(unknown_);
    }
    after_unknown = token < 0;
  }
}

void Bpe::merge(std::vector<std::int32_t>& tokens, std::size_t begin) const {
  const std::span<std::int32_t> all = std::span(tokens).subspan(begin);
  tokens.resize(begin + (all.size() <= kShort ? merge_short(all) : merge_long(all)));
}

// The lowest rank first, of equal ones the leftmost.
std::size_t Bpe::merge_short(std::span<std::int32_t> tokens) const {
  std::size_t count = tokens.size();
  if (count < 2) return count;
  std::array<std::uint32_t, kShort> ranks;  // of each token with the next
  for (std::size_t i = 0; i + 1 < count; ++i) ranks[i] = merges_.rank(tokens[i], tokens[i + 1]);
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i) {
      if (ranks[i] < ranks[best]) best = i;
    }
    if (ranks[best] == MergeTable::kNone) break;
    tokens[best] = merges_.result(ranks[best]);
    --count;
    for (std::size_t i = best + 1; i < count; ++i) {
      tokens[i] = tokens[i + 1];
      if (i + 1 < count) ranks[i] = ranks[i + 1];
    }
    if (best > 0) ranks[best - 1] = merges_.rank(tokens[best - 1], tokens[best]);
    if (best + 1 < count) ranks[best] = merges_.rank(tokens[best], tokens[best + 1]);
  }
  return count;
}

// The same with a heap of rank << 32 | place, and the places linked. An entry whose pair has changed since is passed
// over.
std::size_t Bpe::merge_long(std::span<std::int32_t> tokens) const {
  const auto size = static_cast<std::uint32_t>(tokens.size());
  std::vector<std::uint32_t> next(size), previous(size);
  std::vector<std::uint64_t> found;
  found.reserve(size);
  const auto at = [&](std::uint32_t i) {
    return next[i] < size ? merges_.rank(tokens[i], tokens[next[i]]) : MergeTable::kNone;
  };
  const auto entry = [](std::uint64_t rank, std::uint32_t place) { return (rank << 32) | place; };
  for (std::uint32_t i = 0; i < size; ++i) {
    next[i] = i + 1;
    previous[i] = i - 1;
  }
  for (std::uint32_t i = 0; i < size; ++i) {
    if (at(i) != MergeTable::kNone) found.push_back(entry(at(i), i));
  }
  std::priority_queue<std::uint64_t, std::vector<std::uint64_t>, std::greater<>> heap({}, std::move(found));
  const auto push = [&](std::uint32_t i) {
    const std::uint32_t rank = at(i);
    if (rank != MergeTable::kNone) heap.push(entry(rank, i));
  };
  while (!heap.empty()) {
    const std::uint64_t top = heap.top();
    heap.pop();
    const auto i = static_cast<std::uint32_t>(top & 0xFFFFFFFFU);
    if (tokens[i] < 0) continue;  // merged into the one before it
    const std::uint32_t rank = at(i);
    if (rank == MergeTable::kNone || entry(rank, i) != top) continue;
    const std::uint32_t gone = next[i];
    tokens[i] = merges_.result(rank);
    tokens[gone] = -1;
    next[i] = next[gone];
    if (next[i] < size) previous[next[i]] = i;
    push(i);
    if (i > 0) push(previous[i]);
  }
  std::size_t count = 0;
  for (const std::int32_t token : tokens) {
    if (token >= 0) tokens[count++] = token;
  }
  return count;
}

}  // namespace attend::llm
