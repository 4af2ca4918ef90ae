// Tests of the named patterns: each against its definition, key by key, and what they refuse.
#include "attend/patterns.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "reference/attention.hpp"
#include "unit/error_of.hpp"

namespace attend {
namespace {

using std::int64_t;
using test::error_of;

bool sees(const Mask& mask, int64_t i, int64_t j, int64_t M, int64_t N, int64_t h = 0) {
  return reference::visible(mask, 0, h, i, j, M, N);
}

// Asks the mask and f(p, j), p being where the query stands, about every pair.
template <class F>
void expect_defined(const Mask& mask, int64_t M, int64_t N, const F& f) {
  for (int64_t i = 0; i < M; ++i)
    for (int64_t j = 0; j < N; ++j)
      ASSERT_EQ(sees(mask, i, j, M, N), f(i + N - M, j)) << "query " << i << ", key " << j;
}

TEST(Patterns, Strided) {
  for (const int64_t stride : {1, 3, 8, 100})
    expect_defined(strided(stride), 30, 37,
                   [&](int64_t p, int64_t j) { return j <= p && (j >= p - stride || (p - j) % stride == 0); });
}

TEST(Patterns, Fixed) {
  expect_defined(fixed(5, 2), 30, 37, [&](int64_t p, int64_t j) { return j <= p && (j / 5 == p / 5 || j % 5 >= 3); });
  expect_defined(fixed(4), 9, 9, [&](int64_t p, int64_t j) { return j <= p && (j / 4 == p / 4 || j % 4 == 3); });
}

TEST(Patterns, Longformer) {
  const auto global = [](int64_t x) { return x == 0 || x == 20; };
  expect_defined(longformer(3, 1, {20, 0}), 30, 37,
                 [&](int64_t p, int64_t j) { return std::abs(p - j) <= 3 || global(p) || global(j); });
  expect_defined(longformer(3, 2, {0, 20}), 37, 37, [&](int64_t p, int64_t j) {
    return (std::abs(p - j) <= 6 && (p - j) % 2 == 0) || global(p) || global(j);
  });
  expect_defined(longformer(2), 20, 20, [&](int64_t p, int64_t j) { return std::abs(p - j) <= 2; });
}

TEST(Patterns, Streaming) {
  expect_defined(streaming(4, 6), 30, 37, [&](int64_t p, int64_t j) { return j <= p && (j < 4 || j > p - 6); });
  expect_defined(streaming(4, 6), 1, 2, [&](int64_t p, int64_t j) { return j <= p; });  // fewer keys than sinks
  expect_defined(streaming(0, 2), 9, 9, [&](int64_t p, int64_t j) { return j <= p && j > p - 2; });
}

TEST(Patterns, BigBird) {
  const int64_t L = 100, block = 8, n = 13;
  const BigBird options{
      .block = block, .window_blocks = 3, .global_blocks = 2, .random_blocks = 2, .heads = 2, .seed = 7};
  const Mask mask = bigbird(L, L, options);
  std::set<std::vector<int64_t>> rows;
  for (int64_t h = 0; h < 2; ++h)
    for (int64_t y = 0; y < n; ++y) {
      std::vector<int64_t> random;
      for (int64_t x = 0; x < n; ++x) {
        const bool is = sees(mask, y * block, x * block, L, L, h);
        EXPECT_EQ(is, sees(mask, std::min(L - 1, y * block + 7), std::min(L - 1, x * block + 7), L, L, h));
        const bool must = y < 2 || x < 2 || std::abs(y - x) <= 1;
        EXPECT_TRUE(is || !must);
        if (is && !must) random.push_back(x);
      }
      EXPECT_EQ(random.size(), y < 2 ? 0U : 2U) << y;
      rows.insert(random);
    }
  EXPECT_GE(rows.size(), 10U);  // rows and heads draw their own
  const Mask again = bigbird(L, L, options);
  BigBird other = options;
  other.seed = 8;
  const Mask different = bigbird(L, L, other);
  bool differs = false;
  for (int64_t i = 0; i < L; i += block)
    for (int64_t j = 0; j < L; j += block) {
      EXPECT_EQ(sees(mask, i, j, L, L), sees(again, i, j, L, L));
      differs = differs || sees(mask, i, j, L, L) != sees(different, i, j, L, L);
    }
  EXPECT_TRUE(differs);
}

TEST(Patterns, BigBirdCausalAndBesideACache) {
  const Mask mask = bigbird(20, 100, {.block = 8, .global_blocks = 1, .random_blocks = 2, .causal = true});
  for (int64_t i = 0; i < 20; ++i) {
    const int64_t p = i + 80;
    EXPECT_TRUE(sees(mask, i, p, 20, 100)) << i;      // its own key
    EXPECT_TRUE(sees(mask, i, p - 8, 20, 100)) << i;  // the block before
    EXPECT_TRUE(sees(mask, i, 0, 20, 100)) << i;      // the global block
    for (int64_t j = p + 1; j < 100; ++j) EXPECT_FALSE(sees(mask, i, j, 20, 100));
  }
}

// The last query is at the last key: with more queries than keys, the first ones have no block.
TEST(Patterns, BigBirdWithMoreQueriesThanKeys) {
  for (const int64_t window : {1, 3, 5})
    for (const int64_t global : {0, 1, 2}) {
      const Mask mask =
          bigbird(20, 12, {.block = 4, .window_blocks = window, .global_blocks = global, .random_blocks = 0});
      for (int64_t i = 0; i < 20; ++i) {
        const int64_t own = i < 8 ? -100 : (i - 8) / 4;
        for (int64_t j = 0; j < 12; ++j) {
          const bool near = std::abs(own - j / 4) <= window / 2, all = own >= 0 && own < global;
          EXPECT_EQ(sees(mask, i, j, 20, 12), near || all || j / 4 < global) << i << " " << j << ", window " << window;
        }
      }
    }
}

// What the first numbers are, so that another machine or version draws the same.
TEST(Patterns, RandomBlocksArePinned) {
  const Mask mask = bigbird(640, 640, {.block = 64, .window_blocks = 1, .global_blocks = 0, .random_blocks = 2});
  std::string text;
  for (int64_t y = 0; y < 10; ++y) {
    for (int64_t x = 0; x < 10; ++x)
      if (x != y && sees(mask, y * 64, x * 64, 640, 640)) text += std::to_string(x);
    text += ' ';
  }
  EXPECT_EQ(text, "47 47 39 08 69 19 12 39 47 35 ");
  const Mask permuted = block_permutation(60, 60, 6, 1, 3);
  std::string order;
  for (int64_t y = 0; y < 6; ++y)
    for (int64_t x = 0; x < 6; ++x)
      if (sees(permuted, y * 10, x * 10, 60, 60)) order += std::to_string(x);
  EXPECT_EQ(order, "410253");
}

TEST(Patterns, BlockPermutation) {
  const Mask mask = block_permutation(10, 14, {{2, 0, 1}, {0, 1, 2}});
  for (int64_t i = 0; i < 10; ++i)
    for (int64_t j = 0; j < 14; ++j) {
      const std::vector<int64_t> first = {2, 0, 1};
      EXPECT_EQ(sees(mask, i, j, 10, 14, 0), first[static_cast<std::size_t>(i / 4)] == j / 5);
      EXPECT_EQ(sees(mask, i, j, 10, 14, 1), i / 4 == j / 5);
    }
}

TEST(Patterns, RefuseNonsense) {
  EXPECT_EQ(error_of([] { strided(0); }), "strided: stride is 0, expected 1 to 2^60");
  EXPECT_EQ(error_of([] { fixed(0); }), "fixed: block is 0, expected 1 to 2^60");
  EXPECT_EQ(error_of([] { fixed(4, 5); }), "fixed: columns is 5, expected at most the block, 4");
  EXPECT_EQ(error_of([] { longformer(-1); }), "longformer: window is -1, expected 0 to 2^60");
  EXPECT_EQ(error_of([] { longformer(0, 2); }),
            "longformer: window is 0 with a dilation of 2: it skips every key but a query's own; expected a window of "
            "at least 1");
  EXPECT_EQ(error_of([] { longformer(int64_t{1} << 40, int64_t{1} << 30); }),
            "longformer: window x dilation is more than 2^60: no key lies that far");
  EXPECT_EQ(error_of([] { longformer(2, 1, {-3}); }), "global_tokens: positions[0] is -3, expected 0 to 2^60");
  EXPECT_EQ(error_of([] { streaming(-1, 4); }), "streaming: sinks is -1, expected 0 to 2^60");
  EXPECT_EQ(error_of([] { streaming(4, 0); }), "streaming: window is 0, expected 1 to 2^60");
  EXPECT_EQ(error_of([] { bigbird(64, 64, {.block = 0}); }), "bigbird: block is 0, expected 1 to 2^60");
  EXPECT_EQ(error_of([] { bigbird(640, 640, {.window_blocks = 2}); }),
            "bigbird: window_blocks is 2, expected an odd number: a block's own and as many on each side");
  EXPECT_EQ(error_of([] { bigbird(64, 64, {}); }),
            "bigbird: global_blocks is 1 and random_blocks 3, expected at most the 1 blocks of keys there are");
  EXPECT_EQ(error_of([] { bigbird(-1, 64); }), "bigbird: queries is -1, expected 0 to 2^60");
  EXPECT_EQ(error_of([] { block_permutation(9, 9, 8, 1, 0); }),
            "block_permutation: 9 queries do not cut into 8 blocks: some would be empty");
  EXPECT_EQ(error_of([] { block_permutation(9, 9, 0, 1, 0); }),
            "block_permutation: blocks is 0, expected 1 to 9, the shorter length");
  EXPECT_EQ(error_of([] { block_permutation(9, 9, {{0, 1, 1}}); }),
            "block_permutation: permutation[2] is 1, expected each of 0 to 2 once");
  EXPECT_EQ(error_of([] { block_permutation(9, 9, {{0, 1, 2}, {0, 1}}); }),
            "block_permutation: permutation length is 2, expected 3 (as the first)");
  EXPECT_EQ(error_of([] { block_permutation(9, 9, {}); }),
            "block_permutation: got no permutation, expected one for all heads, or one for each head");
}

}  // namespace
}  // namespace attend
