// The hash of keys that come from files: keys made to meet in a table do not.
#include "base/keyed_hash.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "llm/text/bpe.hpp"

namespace attend {
namespace {

constexpr std::uint64_t kFixedFactor = 0x9E3779B97F4A7C15U;  // of a table whose places anybody can compute

// Keys that multiplication by the fixed factor puts into one 4,096th of a table.
std::vector<std::uint64_t> meeting_keys(std::size_t count) {
  std::vector<std::uint64_t> keys;
  for (std::uint64_t key = 1; keys.size() < count; ++key)
    if ((key * kFixedFactor) >> 52 == 7) keys.push_back(key);
  return keys;
}

// How many keys the fullest of 4,096 places gets, by the high and by the low bits.
template <class Key>
std::size_t fullest(const KeyedHash& hash, const std::vector<Key>& keys) {
  std::array<std::size_t, 4096> high{}, low{};
  for (const Key& key : keys) {
    ++high[hash(key) >> 52];
    ++low[hash(key) & 4095];
  }
  return std::max(*std::max_element(high.begin(), high.end()), *std::max_element(low.begin(), low.end()));
}

// Chance alone gives the fullest of 4,096 places some 8 of 4,096 keys.
constexpr std::size_t kByChance = 24;

TEST(KeyedHash, SpreadsKeysMadeToMeet) {
  const std::vector<std::uint64_t> keys = meeting_keys(4096);
  EXPECT_LE(fullest(KeyedHash(), keys), kByChance);
  EXPECT_LE(fullest(KeyedHash(1, 0x0123456789ABCDEFU), keys), kByChance);
}

TEST(KeyedHash, SpreadsPlainKeys) {
  std::vector<std::uint64_t> counted, pairs;
  std::vector<std::string> words;
  for (std::uint64_t n = 0; n < 4096; ++n) {
    counted.push_back(n);
    pairs.push_back(((n / 64) << 32) | n % 64);
    words.push_back("token " + std::to_string(n));
  }
  EXPECT_LE(fullest(KeyedHash(), counted), kByChance);
  EXPECT_LE(fullest(KeyedHash(), pairs), kByChance);
  EXPECT_LE(fullest(KeyedHash(), words), kByChance);
}

TEST(KeyedHash, IsTheSameWithinAProcessAndAnotherWithAnotherSecret) {
  const std::string text = "a text of more than eight bytes";
  EXPECT_EQ(KeyedHash()(text), KeyedHash()(std::string(text)));
  EXPECT_EQ(KeyedHash()(std::uint64_t{77}), KeyedHash()(std::uint64_t{77}));
  EXPECT_NE(KeyedHash(1, 3)(text), KeyedHash(2, 3)(text));
  EXPECT_NE(KeyedHash(1, 3)(text), KeyedHash(1, 5)(text));
  EXPECT_NE(KeyedHash()("a"), KeyedHash()(std::string_view("a\0", 2)));  // zeros at the end count
}

// Merges made to meet in the tokenizer's table: with places that anybody can compute each look-up passes 262,144
// others.
TEST(KeyedHash, MergesMadeToMeetAreFoundAtOnce) {
  llm::BpeParts parts;
  parts.byte_tokens.fill(-1);
  parts.byte_tokens['a'] = 0;
  parts.byte_tokens['b'] = 1;
  for (const std::uint64_t key : meeting_keys(std::size_t{1} << 16))
    parts.merges.push_back({0, static_cast<std::int32_t>(key), 2});
  parts.merges.push_back({0, 1, 2});
  const std::vector<std::string> pieces = {"a", "b", "ab"};
  const llm::Bpe bpe(pieces, parts);
  std::vector<std::int32_t> tokens;
  for (int n = 0; n < 100'000; ++n) {
    tokens.clear();
    bpe.encode("ab", tokens);
  }
  EXPECT_EQ(tokens, std::vector<std::int32_t>{2});
}

}  // namespace
}  // namespace attend
