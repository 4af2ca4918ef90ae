// The hash of keys that come from files: keys made to meet in a table do not.
#include "base/keyed_hash.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/random.hpp"
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

// Of 4,096 places for 4,096 keys the fullest gets some 8 by chance, and more than 16 in less than one of 10^9 tables.
constexpr std::size_t kByChance = 16;

// The secrets are drawn once per process; these are a thousand such draws, the same ones in every run.
KeyedHash drawn(std::uint32_t n) {
  const auto bits = philox({n, 0, 0, 0}, 2024);
  return KeyedHash(std::uint64_t{bits[0]} << 32 | bits[1], std::uint64_t{bits[2]} << 32 | bits[3]);
}

TEST(KeyedHash, SpreadsKeysMadeToMeet) {
  const std::vector<std::uint64_t> keys = meeting_keys(4096);
  for (std::uint32_t n = 0; n < 1000; ++n) ASSERT_LE(fullest(drawn(n), keys), kByChance) << n;
}

// As ids, pairs of ids, and addresses are.
TEST(KeyedHash, SpreadsPlainKeysWithEverySecret) {
  for (const std::uint64_t step : {1U, 2U, 3U, 8U, 24U, 256U, 4096U, 1U << 20}) {
    std::vector<std::uint64_t> counted, high;
    for (std::uint64_t n = 0; n < 4096; ++n) {
      counted.push_back(n * step);
      high.push_back(n * step << 32);
    }
    for (std::uint32_t n = 0; n < 1000; ++n) {
      ASSERT_LE(fullest(drawn(n), counted), kByChance) << n << " " << step;
      ASSERT_LE(fullest(drawn(n), high), kByChance) << n << " " << step;
    }
  }
}

TEST(KeyedHash, SpreadsPairsAndWordsWithEverySecret) {
  std::vector<std::uint64_t> pairs;
  std::vector<std::string> words, long_words;
  for (std::uint64_t n = 0; n < 4096; ++n) {
    pairs.push_back(((n / 64) << 32) | n % 64);
    words.push_back("token " + std::to_string(n));
    long_words.push_back(std::to_string(n) + " is a key of several words of eight bytes");
  }
  for (std::uint32_t n = 0; n < 1000; ++n) {
    ASSERT_LE(fullest(drawn(n), pairs), kByChance) << n;
    ASSERT_LE(fullest(drawn(n), words), kByChance) << n;
    ASSERT_LE(fullest(drawn(n), long_words), kByChance) << n;
  }
}

// A secret that chance would hardly draw is as good as any other.
TEST(KeyedHash, SpreadsPlainKeysWithSecretsOfFewBits) {
  std::vector<std::uint64_t> counted;
  for (std::uint64_t n = 0; n < 4096; ++n) counted.push_back(n);
  for (int bit = 0; bit < 64; ++bit) {
    const std::uint64_t one = std::uint64_t{1} << bit;
    for (const KeyedHash& hash : {KeyedHash(0, one), KeyedHash(one, 0), KeyedHash(one, one), KeyedHash(~one, one)})
      ASSERT_LE(fullest(hash, counted), kByChance) << bit;
  }
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
  parts.merges = llm::MergeTable((std::size_t{1} << 16) + 1);
  for (const std::uint64_t key : meeting_keys(std::size_t{1} << 16))  // a token has 21 bits of the table's keys
    parts.merges.add(static_cast<std::int32_t>(key >> 21), static_cast<std::int32_t>(key & ((1U << 21) - 1)), 2);
  parts.merges.add(0, 1, 2);
  const std::vector<std::string> texts = {"a", "b", "ab"};
  const llm::Pieces pieces(texts);
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
