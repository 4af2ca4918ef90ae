// Tests of the mask rules, against small matrices written by hand, and of what the factories refuse.
#include "attend/mask.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "reference/attention.hpp"
#include "unit/error_of.hpp"

namespace attend {
namespace {

using test::error_of;

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();

// One row of digits per query, 1 where the key is visible.
std::string draw(const Mask& mask, std::int64_t M, std::int64_t N, std::int64_t b = 0, std::int64_t h = 0) {
  std::string text;
  for (std::int64_t i = 0; i < M; ++i) {
    if (i > 0) text += '/';
    for (std::int64_t j = 0; j < N; ++j) text += reference::visible(mask, b, h, i, j, M, N) ? '1' : '0';
  }
  return text;
}

TEST(MaskRules, NoMaskAllowsAll) {
  EXPECT_EQ(draw(no_mask(), 2, 3), "111/111");
}

TEST(MaskRules, CausalAlignedToEitherEnd) {
  EXPECT_EQ(draw(causal(), 4, 4), "1000/1100/1110/1111");
  EXPECT_EQ(draw(causal(Align::first_key), 4, 4), "1000/1100/1110/1111");
  // More keys than queries.
  EXPECT_EQ(draw(causal(Align::first_key), 2, 5), "10000/11000");
  EXPECT_EQ(draw(causal(Align::last_key), 2, 5), "11110/11111");
  EXPECT_EQ(draw(causal(), 2, 5), "11110/11111");
  // Fewer: the first queries see nothing when the last ones meet.
  EXPECT_EQ(draw(causal(Align::first_key), 4, 2), "10/11/11/11");
  EXPECT_EQ(draw(causal(Align::last_key), 4, 2), "00/00/10/11");
  EXPECT_EQ(draw(causal(), 1, 4), "1111");
}

TEST(MaskRules, DiagonalGivenOutright) {
  const Mask mask = causal(Diagonal::at({1, 0, -2}));
  EXPECT_EQ(draw(mask, 3, 4, 0), "1100/1110/1111");
  EXPECT_EQ(draw(mask, 3, 4, 1), "1000/1100/1110");
  EXPECT_EQ(draw(mask, 3, 4, 2), "0000/0000/1000");
  EXPECT_EQ(draw(causal(Diagonal::at({2})), 2, 4, 7), "1110/1111");  // one for all
  EXPECT_EQ(draw(window(0, 0, Diagonal::at({1, 2})), 2, 4, 1), "0010/0001");
  EXPECT_EQ(draw(prefix({1}, Diagonal::at({-1, 1})), 2, 3, 0), "100/100");
  EXPECT_EQ(draw(prefix({1}, Diagonal::at({-1, 1})), 2, 3, 1), "110/111");
}

TEST(MaskRules, WindowIsInclusiveOnBothSides) {
  EXPECT_EQ(draw(window(1, 0), 4, 4), "1000/1100/0110/0011");
  EXPECT_EQ(draw(window(0, 1), 4, 4), "1100/0110/0011/0001");
  EXPECT_EQ(draw(window(0, 0), 3, 3), "100/010/001");
  EXPECT_EQ(draw(window(1, kUnlimited), 4, 4), "1111/1111/0111/0011");
  EXPECT_EQ(draw(window(1, kUnlimited), 4, 4), "1111/1111/0111/0011");
  EXPECT_EQ(draw(window(kUnlimited, 1), 4, 4), "1100/1110/1111/1111");
  EXPECT_EQ(draw(window(kUnlimited, kUnlimited), 2, 3), "111/111");
  EXPECT_EQ(draw(window(1, 1, Align::first_key), 2, 5), "11000/11100");
  EXPECT_EQ(draw(window(1, 1, Align::last_key), 2, 5), "00111/00011");
  EXPECT_EQ(draw(window(1, 0, Align::first_key), 4, 2), "10/11/01/00");
  EXPECT_EQ(draw(window(1, 0, Align::last_key), 4, 2), "00/00/10/11");
  EXPECT_EQ(draw(window(kMax, kMax), 2, 3), "111/111");  // so wide that it is no limit
  EXPECT_EQ(draw(window(kMax / 4, kMax / 4), 2, 3), "111/111");
}

TEST(MaskRules, PaddingOnEitherSide) {
  const Mask right = padding({3, 0, 4});
  EXPECT_EQ(draw(right, 2, 4, 0), "1110/1110");
  EXPECT_EQ(draw(right, 2, 4, 1), "0000/0000");
  EXPECT_EQ(draw(right, 2, 4, 2), "1111/1111");
  const Mask left = left_padding({1, 4});
  EXPECT_EQ(draw(left, 2, 4, 0), "0111/0111");
  EXPECT_EQ(draw(left, 2, 4, 1), "0000/0000");
  EXPECT_EQ(draw(padding({2}), 1, 3, 5), "110");  // one for all
  EXPECT_EQ(draw(padding({3}) & left_padding({1}), 1, 4), "0110");
}

TEST(MaskRules, PrefixIsVisibleToEveryQuery) {
  EXPECT_EQ(draw(prefix({2}), 4, 4), "1100/1100/1110/1111");
  EXPECT_EQ(draw(prefix({0}), 3, 3), "100/110/111");
  EXPECT_EQ(draw(prefix({3, 1}), 2, 4, 0), "1110/1111");
  EXPECT_EQ(draw(prefix({3, 1}, Align::first_key), 2, 4, 0), "1110/1110");
  EXPECT_EQ(draw(prefix({3, 1}, Align::first_key), 2, 4, 1), "1000/1100");
  EXPECT_EQ(draw(prefix({1}), 4, 2), "10/10/10/11");
}

TEST(MaskRules, SegmentsSeeTheirOwn) {
  EXPECT_EQ(draw(segments({0, 2, 5}), 5, 5), "11000/11000/00111/00111/00111");
  // Queries and keys cut differently.
  EXPECT_EQ(draw(segments({0, 1, 3}, {0, 3, 4}), 3, 4), "1110/0001/0001");
  // A document without queries, without keys, without either.
  EXPECT_EQ(draw(segments({0, 1, 1, 2}, {0, 1, 3, 4}), 2, 4), "1000/0001");
  EXPECT_EQ(draw(segments({0, 1, 2, 3}, {0, 2, 2, 3}), 3, 3), "110/000/001");
  EXPECT_EQ(draw(segments({0, 0, 2, 2, 3}), 3, 3), "110/110/001");
  // Past the last document lies padding.
  EXPECT_EQ(draw(segments({0, 2, 3}), 5, 5), "11000/11000/00100/00000/00000");
  EXPECT_EQ(draw(segments({0}), 2, 2), "00/00");
}

TEST(MaskRules, PositionsCountWithinTheSegment) {
  EXPECT_EQ(draw(segments({0, 2, 5}) & causal(), 5, 5), "10000/11000/00100/00110/00111");
  EXPECT_EQ(draw(causal() & segments({0, 2, 5}), 5, 5), "10000/11000/00100/00110/00111");  // in either order
  // Two queries over three keys, two over two, one over none, three over one.
  const std::vector<std::int64_t> q = {0, 2, 4, 5, 8}, k = {0, 3, 5, 5, 6};
  EXPECT_EQ(draw(segments(q, k) & causal(Align::last_key), 8, 6),
            "110000/111000/000100/000110/000000/000000/000000/000001");
  EXPECT_EQ(draw(segments(q, k) & causal(Align::first_key), 8, 6),
            "100000/110000/000100/000110/000000/000001/000001/000001");
  EXPECT_EQ(draw(segments({0, 3, 6}) & window(1, 0), 6, 6), "100000/110000/011000/000100/000110/000011");
  EXPECT_EQ(draw(segments({0, 1, 3}, {0, 3, 6}) & window(0, 1), 3, 6), "001000/000011/000001");
  EXPECT_EQ(draw(segments({0, 3, 6}) & prefix({2}), 6, 6), "110000/110000/111000/000110/000110/000111");
  EXPECT_EQ(draw(segments({0, 2, 4}, {0, 3, 6}) & causal(Diagonal::at({0})), 4, 6), "100000/110000/000100/000110");
  // Padding counts keys of the whole, not of the segment.
  EXPECT_EQ(draw(segments({0, 2, 4}) & padding({3}), 4, 4), "1100/1100/0010/0010");
  EXPECT_EQ(draw(segments({0, 2, 4}) & left_padding({1}), 4, 4), "0100/0100/0011/0011");
  // Past the last document: padding, whatever the other rules say.
  EXPECT_EQ(draw(segments({0, 2}) & causal(), 3, 3), "100/110/000");
}

TEST(MaskRules, BlocksWithRaggedEdges) {
  const Mask one = blocks(2, 3, 1, 2, 2, {1, 0, 0, 1});
  EXPECT_EQ(draw(one, 3, 5, 0, 0), "11100/11100/00011");
  EXPECT_EQ(draw(one, 3, 5, 1, 4), "11100/11100/00011");  // the same for every batch and head
  const Mask per_head = blocks(1, 2, 2, 2, 2, {1, 0, 0, 9, 0, 1, 1, 1});
  EXPECT_EQ(draw(per_head, 2, 4, 0, 0), "1100/0011");
  EXPECT_EQ(draw(per_head, 2, 4, 3, 1), "0011/1111");
}

TEST(MaskRules, DenseRepeatsDimensionsOfSizeOne) {
  const std::uint8_t x[16] = {1, 0, 0, 1, 1, 1, 0, 0, 1, 0, 1, 0, 0, 200, 0, 0};
  EXPECT_EQ(draw(dense(x, {1, 1, 2, 4}), 2, 4, 3, 2), "1001/1100");
  EXPECT_EQ(draw(dense(x, {1, 1, 1, 4}), 2, 4), "1001/1001");
  EXPECT_EQ(draw(dense(x, {1, 1, 4, 1}), 4, 2), "11/00/00/11");
  EXPECT_EQ(draw(dense(x, {1, 2, 2, 4}), 2, 4, 5, 1), "1010/0100");
  EXPECT_EQ(draw(dense(x, {2, 1, 2, 4}), 2, 4, 1, 5), "1010/0100");
  EXPECT_EQ(draw(dense(x, {2, 2, 2, 2}), 2, 2, 1, 0), "10/10");
  EXPECT_EQ(draw(dense(x, {2, 2, 2, 2}), 2, 2, 0, 1), "11/00");
  // Strides: transposed, reversed, repeated.
  EXPECT_EQ(draw(dense(x, {1, 1, 4, 2}, {0, 0, 1, 4}), 4, 2), "11/01/00/10");
  EXPECT_EQ(draw(dense(x + 7, {1, 1, 2, 4}, {0, 0, -4, -1}), 2, 4), "0011/1001");
  EXPECT_EQ(draw(dense(x, {1, 1, 2, 4}, {0, 0, 0, 1}), 2, 4), "1001/1001");
}

TEST(MaskRules, AndKeepsWhatEveryRuleAllows) {
  EXPECT_EQ(draw(causal() & window(1, kUnlimited), 4, 4), "1000/1100/0110/0011");
  EXPECT_EQ(draw(causal() & padding({2}), 3, 3), "100/110/110");
  EXPECT_EQ(draw(causal() & left_padding({1}), 3, 3), "000/010/011");
  EXPECT_EQ(draw(no_mask() & causal(), 2, 2), "10/11");
  EXPECT_EQ(draw(causal() & no_mask(), 2, 2), "10/11");
  EXPECT_EQ(draw(causal() & blocks(2, 2, 1, 2, 2, {1, 1, 0, 1}), 4, 4), "1000/1100/0010/0011");
  const std::uint8_t odd[4] = {0, 1, 0, 1};
  const Mask three = causal() & dense(odd, {1, 1, 1, 4}) & padding({3});
  EXPECT_EQ(three.rules.size(), 3U);
  EXPECT_EQ(draw(three, 4, 4), "0000/0100/0100/0100");
}

// ---- What the factories refuse ----

TEST(MaskErrors, SayWhatWasGotAndExpected) {
  EXPECT_EQ(error_of([] { window(-2, kUnlimited); }), "window: left is -2, expected >= 0, or kUnlimited (-1)");
  EXPECT_EQ(error_of([] { window(0, -7); }), "window: right is -7, expected >= 0, or kUnlimited (-1)");
  EXPECT_NE(error_of([] { window(kMin, 0); }), "");
  EXPECT_EQ(error_of([] { padding({}); }), "padding: lengths has 0 values, expected one per batch, or one for all");
  EXPECT_EQ(error_of([] { padding({3, -1}); }), "padding: lengths[1] is -1, expected >= 0");
  EXPECT_EQ(error_of([] { left_padding({-5}); }), "left_padding: counts[0] is -5, expected >= 0");
  EXPECT_NE(error_of([] { left_padding({}); }), "");
  EXPECT_EQ(error_of([] { prefix({1, 2, -3}); }), "prefix: lengths[2] is -3, expected >= 0");
  EXPECT_NE(error_of([] { prefix({}); }), "");
  EXPECT_EQ(error_of([] { Diagonal::at({}); }),
            "Diagonal::at: offsets has 0 values, expected one per batch, or one for all");
  EXPECT_EQ(error_of([] { Diagonal::at({0, kMax}); }),
            "Diagonal::at: offsets[1] is 9223372036854775807, expected within +-2^60");
  EXPECT_NE(error_of([] { Diagonal::at({kMin}); }), "");
}

TEST(MaskErrors, Segments) {
  EXPECT_EQ(error_of([] { segments({}); }), "segments: cumulative has 0 values, expected at least the starting 0");
  EXPECT_EQ(error_of([] { segments({1, 2}); }), "segments: cumulative[0] is 1, expected 0");
  EXPECT_EQ(error_of([] { segments({0, 5, 3}); }), "segments: cumulative[2] is 3, expected >= 5 (the one before)");
  EXPECT_NE(error_of([] { segments({0, -1}); }), "");
  EXPECT_EQ(error_of([] { segments({0, 1, 2}, {0, 1}); }),
            "segments: number of cumulative_keys is 2, expected 3 (as cumulative_queries)");
  EXPECT_EQ(error_of([] { segments({0, 1}, {0, -1}); }),
            "segments: cumulative_keys[1] is -1, expected >= 0 (the one before)");
  EXPECT_EQ(error_of([] { segments({2, 3}, {0, 1}); }), "segments: cumulative_queries[0] is 2, expected 0");
  EXPECT_EQ(error_of([] { segments({0, 1}) & causal() & segments({0, 1}); }),
            "mask &: both sides have segments, expected one (positions count within the segment)");
}

TEST(MaskErrors, BlocksAndDense) {
  EXPECT_EQ(error_of([] { blocks(0, 1, 1, 1, 1, {1}); }), "blocks: block_queries is 0, expected >= 1");
  EXPECT_EQ(error_of([] { blocks(1, -4, 1, 1, 1, {1}); }), "blocks: block_keys is -4, expected >= 1");
  EXPECT_EQ(error_of([] { blocks(1, 1, 0, 1, 1, {}); }), "blocks: heads is 0, expected >= 1");
  EXPECT_EQ(error_of([] { blocks(1, 1, 1, -1, -1, {1}); }), "blocks: rows is -1, expected >= 0");
  EXPECT_EQ(error_of([] { blocks(1, 1, 1, 1, -1, {}); }), "blocks: cols is -1, expected >= 0");
  EXPECT_EQ(error_of([] { blocks(1, 1, 1, 2, 2, {1, 1, 1}); }),
            "blocks: number of bits is 3, expected 4 (heads x rows x cols)");
  EXPECT_EQ(error_of([] { blocks(1, 1, std::int64_t{1} << 32, std::int64_t{1} << 32, 1, {}); }),  // wraps to 0
            "blocks: heads x rows x cols is 4294967296 x 4294967296 x 1, expected a product below 2^63");
  EXPECT_EQ(error_of([] { blocks(4, 4, 1, 0, 0, {}); }), "");

  const std::uint8_t x[4] = {};
  EXPECT_EQ(error_of([] { dense(nullptr, {1, 1, 2, 2}); }),
            "dense: mask data is null, expected a pointer to [1, 1, 2, 2] elements");
  EXPECT_EQ(error_of([] { dense(nullptr, {1, 1, 0, 2}); }), "");
  EXPECT_EQ(error_of([&] { dense(x, {1, 1, -2, 2}, {0, 0, 2, 1}); }),
            "dense: mask shape is [1, 1, -2, 2], expected sizes >= 0");
  EXPECT_NE(error_of([&] { dense(x, {1, 1, -2, 2}); }), "");
  EXPECT_NE(error_of([&] { dense(x, {kMax, kMax, 1, 1}, {0, 0, 0, 0}); }), "");
  EXPECT_NE(error_of([&] { dense(x, {1, 1, 3, 1}, {0, 0, kMax, 1}); }), "");
}

}  // namespace
}  // namespace attend
