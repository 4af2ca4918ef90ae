// Merging: few symbols by search, many with a heap, so that time grows as n log n for any word.
#include "llm/text/bpe.hpp"

#include <bit>
#include <functional>
#include <queue>

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

std::uint64_t key(std::int32_t left, std::int32_t right) {
  return (std::uint64_t{static_cast<std::uint32_t>(left)} << 32) | static_cast<std::uint32_t>(right);
}

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

Bpe::Bpe(const std::vector<std::string>& pieces, const BpeParts& parts)
    : pieces_(pieces),
      byte_tokens_(parts.byte_tokens),
      entries_(std::bit_ceil(parts.merges.size() * 2 + 2)),
      shift_(64 - std::countr_zero(entries_.size())),
      unknown_(parts.unknown),
      fuse_unknown_(parts.fuse_unknown) {
  std::uint64_t rank = 0;
  for (const BpeMerge& m : parts.merges) {
    const std::uint64_t pair = key(m.left, m.right);
    entries_[slot(pair)] = {pair, (rank++ << 32) | static_cast<std::uint32_t>(m.result)};
  }
  PieceMap words(parts.words.size());  // filled aside: encode() must not see it yet
  std::vector<std::int32_t> tokens;
  for (const std::int32_t id : parts.words) {
    tokens.clear();
    if (!parts.ignore_merges) Bpe::encode(pieces[static_cast<std::size_t>(id)], tokens);
    if (parts.ignore_merges || (tokens.size() == 1 && tokens[0] == id)) words.add(pieces, id);
  }
  words_ = std::move(words);
}

std::size_t Bpe::slot(std::uint64_t pair) const {
  std::size_t i = hash_(pair) >> shift_;
  while (entries_[i].pair != pair && entries_[i].pair != kNoMerge) i = (i + 1) & (entries_.size() - 1);
  return i;
}

std::uint64_t Bpe::merge_of(std::int32_t left, std::int32_t right) const {
  return entries_[slot(key(left, right))].merge;
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
  std::array<std::uint64_t, kShort> merges;  // of each token with the next
  for (std::size_t i = 0; i + 1 < count; ++i) merges[i] = merge_of(tokens[i], tokens[i + 1]);
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i) {
      if (merges[i] < merges[best]) best = i;
    }
    if (merges[best] == kNoMerge) break;
    tokens[best] = static_cast<std::int32_t>(merges[best] & 0xFFFFFFFFU);
    --count;
    for (std::size_t i = best + 1; i < count; ++i) {
      tokens[i] = tokens[i + 1];
      if (i + 1 < count) merges[i] = merges[i + 1];
    }
    if (best > 0) merges[best - 1] = merge_of(tokens[best - 1], tokens[best]);
    if (best + 1 < count) merges[best] = merge_of(tokens[best], tokens[best + 1]);
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
  const auto at = [&](std::uint32_t i) { return next[i] < size ? merge_of(tokens[i], tokens[next[i]]) : kNoMerge; };
  const auto entry = [](std::uint64_t merge, std::uint32_t place) {
    return (merge & ~std::uint64_t{0xFFFFFFFFU}) | place;
  };
  for (std::uint32_t i = 0; i < size; ++i) {
    next[i] = i + 1;
    previous[i] = i - 1;
  }
  for (std::uint32_t i = 0; i < size; ++i) {
    if (at(i) != kNoMerge) found.push_back(entry(at(i), i));
  }
  std::priority_queue<std::uint64_t, std::vector<std::uint64_t>, std::greater<>> heap({}, std::move(found));
  const auto push = [&](std::uint32_t i) {
    const std::uint64_t merge = at(i);
    if (merge != kNoMerge) heap.push(entry(merge, i));
  };
  while (!heap.empty()) {
    const std::uint64_t top = heap.top();
    heap.pop();
    const auto i = static_cast<std::uint32_t>(top & 0xFFFFFFFFU);
    if (tokens[i] < 0) continue;  // merged into the one before it
    const std::uint64_t merge = at(i);
    if (merge == kNoMerge || entry(merge, i) != top) continue;
    const std::uint32_t gone = next[i];
    tokens[i] = static_cast<std::int32_t>(merge & 0xFFFFFFFFU);
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
