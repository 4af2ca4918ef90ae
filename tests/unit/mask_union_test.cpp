// Tests of unions, of the rules with holes, and of what a lowered mask says of tiles and rows.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "attend/attention.hpp"
#include "attend/mask.hpp"
#include "attend/runtime.hpp"
#include "base/random.hpp"
#include "core/mask_plan.hpp"
#include "reference/attention.hpp"
#include "unit/error_of.hpp"
#include "unit/op_testing.hpp"

namespace attend {
namespace {

using std::int64_t;
using test::error_of;

std::string draw(const Mask& mask, int64_t M, int64_t N, int64_t b = 0, int64_t h = 0) {
  std::string text;
  for (int64_t i = 0; i < M; ++i) {
    if (i > 0) text += '/';
    for (int64_t j = 0; j < N; ++j) text += reference::visible(mask, b, h, i, j, M, N) ? '1' : '0';
  }
  return text;
}

TEST(MaskUnion, RulesAsDefined) {
  EXPECT_EQ(draw(chunks(2), 5, 5), "11000/11000/00110/00110/00001");
  EXPECT_EQ(draw(chunks(2, 1), 5, 5), "11000/11000/11110/11110/00111");
  EXPECT_EQ(draw(chunks(2) & causal(), 4, 4), "1000/1100/0010/0011");
  EXPECT_EQ(draw(chunks(2), 2, 5), "00110/00001");          // the last query stands at the last key
  EXPECT_EQ(draw(chunks(2), 5, 3), "000/000/110/110/001");  // before the first key
  EXPECT_EQ(draw(chunks(2, 0, Align::first_key), 2, 5), "11000/11000");
  EXPECT_EQ(draw(dilated(2), 3, 5), "10101/01010/10101");
  EXPECT_EQ(draw(dilated(3, Align::first_key), 3, 5), "10010/01001/00100");
  EXPECT_EQ(draw(dilated(1), 2, 3), "111/111");
  EXPECT_EQ(draw(columns(3, 1, 2), 1, 7), "0110110");
  EXPECT_EQ(draw(columns(100, 0, 2), 2, 4), "1100/1100");
  EXPECT_EQ(draw(tokens({3, 0, 3}), 2, 4), "1001/1001");
  EXPECT_EQ(draw(global_tokens({1}), 3, 3), "010/111/010");
  EXPECT_EQ(draw(global_tokens({3}), 2, 4), "0001/1111");
  EXPECT_EQ(draw(global_tokens({0}, Align::first_key), 2, 3), "111/100");
}

TEST(MaskUnion, OrAndExcept) {
  EXPECT_EQ(draw(window(0, 0) | tokens({0}), 3, 3), "100/110/101");
  EXPECT_EQ(draw(causal() & (window(0, 0) | tokens({0}) | tokens({2})), 3, 3), "100/110/101");
  EXPECT_EQ(draw(no_mask() | causal(), 2, 2), "11/11");
  EXPECT_EQ(draw(except(causal()), 3, 3), "011/001/000");
  EXPECT_EQ(draw(except(no_mask()), 2, 2), "00/00");
  EXPECT_EQ(draw(causal() & except(tokens({1}) | tokens({0})), 3, 3), "000/000/001");
  // One level of union, however it is written.
  EXPECT_EQ(std::get<AnyRule>((causal() | (window(1, 0) | tokens({0}))).rules[0]).masks->size(), 3U);
}

TEST(MaskUnion, PositionsCountWithinTheSegmentsBeside) {
  const Mask docs = segments({0, 2, 5});
  EXPECT_EQ(draw(docs & (window(0, 0) | tokens({0})), 5, 5), "10000/11000/00100/00110/00101");
  EXPECT_EQ(draw((window(0, 0) | tokens({0})) & docs, 5, 5), "10000/11000/00100/00110/00101");
  EXPECT_EQ(draw(docs & columns(2, 1), 5, 5), "01000/01000/00010/00010/00010");
  EXPECT_EQ(draw(docs & chunks(2), 5, 5), "11000/11000/00110/00110/00001");
  EXPECT_EQ(draw(docs & dilated(2), 5, 5), "10000/01000/00101/00010/00101");
  EXPECT_EQ(draw(docs & global_tokens({1}), 5, 5), "01000/11000/00010/00111/00010");
  // A side's own segments stand before those beside the union, and both hold.
  EXPECT_EQ(draw(segments({0, 4}) & ((segments({0, 2, 5}) & causal()) | tokens({0})), 5, 5),
            "10000/11000/10100/10110/00000");
}

// However it is written: a window narrower than the step leaves the query's own key.
TEST(MaskUnion, AWindowNarrowerThanADilationShowsTheOwnKey) {
  EXPECT_EQ(draw(window(2, 0) & dilated(3), 4, 4), "1000/0100/0010/0001");
  EXPECT_EQ(draw(window(2, 0) & (dilated(3) | dilated(3)), 4, 4), "1000/0100/0010/0001");
  EXPECT_EQ(draw(window(3, 0) & dilated(3), 4, 4), "1000/0100/0010/1001");
}

TEST(MaskUnion, RefusesNonsense) {
  EXPECT_EQ(error_of([] { chunks(0); }), "chunks: size is 0, expected 1 to 2^60");
  EXPECT_EQ(error_of([] { chunks(4, -1); }), "chunks: back is -1, expected 0 to 2^60");
  EXPECT_EQ(error_of([] { dilated(0); }), "dilated: step is 0, expected 1 to 2^60");
  EXPECT_EQ(error_of([] { columns(4, 3, 2); }),
            "columns: first is 3 and count 2, expected first + count at most the period, 4");
  EXPECT_EQ(error_of([] { columns(4, 0, 0); }), "columns: count is 0, expected 1 to 2^60");
  EXPECT_EQ(error_of([] { tokens({}); }), "tokens: positions has 0 values, expected at least one token");
  EXPECT_EQ(error_of([] { global_tokens({2, -1}); }), "global_tokens: positions[1] is -1, expected 0 to 2^60");
  Mask deep = causal();
  const auto deepen = [&] {
    for (int n = 0; n < 9; ++n) deep = (deep & window(4, 0)) | (tokens({0}) & causal());
  };
  EXPECT_EQ(error_of(deepen), "mask |: masks nest 9 deep, expected at most 8");
}

TEST(MaskUnion, RefusesWhatDoesNotFitTheSizes) {
  const auto lower = [](const Mask& mask) { return error_of([&] { const MaskPlan plan(mask, 1, 1, 8, 8); }); };
  EXPECT_EQ(lower(tokens({1, 8})), "mask: token positions[1] is 8, expected 0 to 7 (the last key)");
  EXPECT_EQ(lower(causal() | global_tokens({9})), "mask: token positions[0] is 9, expected 0 to 7 (the last key)");
  EXPECT_EQ(lower(Mask{{AnyRule{nullptr, false}}}), "mask: a union without masks");
  EXPECT_EQ(lower(Mask{{TokensRule{nullptr, false, Align::last_key}}}), "mask: tokens without positions");
  EXPECT_EQ(lower(Mask{{DilatedRule{0, Align::last_key}}}), "mask: dilated step is 0, expected 1 to 2^60");
  // Unions that were not made by the operator nest as deep at most.
  Mask nested = causal();
  const auto nest = [&](int times) {
    for (int n = 0; n < times; ++n)
      nested = Mask{{AnyRule{std::make_shared<const std::vector<Mask>>(std::vector<Mask>{nested}), false}}};
    return lower(nested);
  };
  EXPECT_EQ(nest(8), "");
  EXPECT_EQ(nest(1), "mask: masks nest deeper than 8, the most there may be");
  // Many small unions within unions are more than anybody needs.
  Mask many = causal() | window(1, 0);
  for (int n = 0; n < 6; ++n) many = (many & window(9, 0)) | (many & tokens({0})) | (many & tokens({1}));
  EXPECT_EQ(lower(many), "mask: more than 1024 masks in a mask, the most there may be");
}

// ---- Random masks ----

struct Sizes {
  int64_t B, H, M, N;
};

class RandomMasks {
 public:
  RandomMasks(std::uint64_t seed, const Sizes& sizes) : seed_(seed), s_(sizes) {}

  int64_t number(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(uniform(seed_, next_++) * static_cast<double>(most - least + 1));
  }
  Diagonal diagonal() {
    const int64_t kind = number(0, 3);
    if (kind == 0) return Align::first_key;
    if (kind == 1) return Diagonal::at({number(-s_.M, s_.N)});
    if (kind == 2 && s_.B > 1) return Diagonal::at({number(-3, s_.N), number(-3, s_.N)});
    return Align::last_key;
  }
  std::vector<int64_t> positions() {
    std::vector<int64_t> list;
    for (int64_t n = number(1, 4); n > 0; --n) list.push_back(number(0, s_.N - 1));
    return list;
  }
  Mask rule() {
    switch (number(0, 10)) {
      case 0:
        return causal(diagonal());
      case 1:
        return window(number(-1, s_.N / 3), number(-1, s_.N / 3), diagonal());
      case 2:
        return padding({number(0, s_.N)});
      case 3:
        return prefix({number(0, s_.N)}, diagonal());
      case 4: {
        const int64_t bq = number(1, 70), bk = number(1, 70), heads = number(0, 1) ? s_.H : 1;
        const int64_t rows = (s_.M + bq - 1) / bq, cols = (s_.N + bk - 1) / bk;
        std::vector<std::uint8_t> bits(static_cast<std::size_t>(heads * rows * cols));
        for (auto& bit : bits) bit = number(0, 3) == 0;
        return blocks(bq, bk, heads, rows, cols, std::move(bits));
      }
      case 5:
        return chunks(number(1, s_.N), number(0, 2), diagonal());
      case 6:
        return dilated(number(1, 90), diagonal());
      case 7: {
        const int64_t period = number(1, s_.N + 9), first = number(0, period - 1);
        return columns(period, first, number(1, period - first));
      }
      case 8:
        return tokens(positions());
      case 9:
        return global_tokens(positions(), diagonal());
      default:
        return left_padding({number(0, s_.N)});
    }
  }
  Mask mask(int64_t depth) {
    Mask all = rule();
    if (depth == 0) return number(0, 1) && !has_window(all) ? all & rule_without_window() : all;
    Mask either = mask(depth - 1) | mask(depth - 1);
    const int64_t kind = number(0, 5);
    if (kind == 0) either = except(either);
    if (kind == 1) either = either & rule();
    if (kind == 2) either = either | tokens(positions());
    if (kind == 3) either = either & segments({0, number(0, s_.M / 2), s_.M}, {0, number(0, s_.N / 2), s_.N});
    return either;
  }

 private:
  static bool has_window(const Mask& mask) { return std::holds_alternative<WindowRule>(mask.rules[0]); }
  Mask rule_without_window() {  // beside a narrow window, a dilation is refused
    Mask found = rule();
    while (has_window(found)) found = rule();
    return found;
  }

  std::uint64_t seed_, next_ = 0;
  Sizes s_;
};

struct Visible {
  Visible(const Mask& mask, const Sizes& sizes) : s(sizes) {
    for (int64_t b = 0; b < s.B; ++b)
      for (int64_t h = 0; h < s.H; ++h)
        for (int64_t i = 0; i < s.M; ++i)
          for (int64_t j = 0; j < s.N; ++j) bits.push_back(reference::visible(mask, b, h, i, j, s.M, s.N));
  }
  bool operator()(int64_t b, int64_t h, int64_t i, int64_t j) const {
    return bits[static_cast<std::size_t>(((b * s.H + h) * s.M + i) * s.N + j)] != 0;
  }
  Sizes s;
  std::vector<std::uint8_t> bits;
};

TEST(MaskUnion, TilesAndRowsAreAnsweredRightly) {
  const Sizes s{2, 2, 70, 150};
  int64_t none = 0, all = 0, some = 0;
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    RandomMasks random(seed, s);
    const Mask mask = random.mask(static_cast<int64_t>(seed % 3));
    const MaskPlan plan(mask, s.B, s.H, s.M, s.N);
    const Visible visible(mask, s);
    std::vector<int64_t> lo(static_cast<std::size_t>(s.M)), hi(lo);
    for (int64_t n = 0; n < 60; ++n) {
      const int64_t b = random.number(0, 1), h0 = random.number(0, 1), h1 = random.number(h0 + 1, 2);
      const int64_t i0 = random.number(0, s.M - 1), i1 = random.number(i0 + 1, std::min(s.M, i0 + 20));
      const int64_t j0 = random.number(0, s.N - 1), j1 = random.number(j0 + 1, std::min(s.N, j0 + 64));
      fill_intervals(plan, b, i0, i1 - i0, lo.data(), hi.data());
      bool covered = true;
      const KeySpan seen = seen_keys(plan, {b, h0, h1, i0, i1, j0, j1});
      for (int64_t h = h0; h < h1; ++h)
        for (int64_t i = i0; i < i1; ++i) {
          std::vector<float> scores(static_cast<std::size_t>(j1 - j0), 1.0F);
          hide_holes(plan, b, h, i, j0, j1 - j0, scores.data());
          for (int64_t j = j0; j < j1; ++j) {
            const bool is = visible(b, h, i, j);
            const auto t = static_cast<std::size_t>(i - i0);
            const bool inside = j >= lo[t] && j < hi[t];
            const bool left = scores[static_cast<std::size_t>(j - j0)] == 1.0F;
            covered = covered && (left || !inside);
            ASSERT_EQ(inside && left, is) << "seed " << seed << " i " << i << " j " << j;
            ASSERT_TRUE(!is || (j >= seen.lo && j < seen.hi)) << "seed " << seed << " i " << i << " j " << j;
          }
        }
      const bool full = sees_all(plan, {b, h0, h1, i0, i1, j0, j1});
      ASSERT_TRUE(!full || covered) << "seed " << seed;
      (seen.lo >= seen.hi ? none : full ? all : some) += 1;
    }
  }
  EXPECT_GE(none, 500);
  EXPECT_GE(all, 500);
  EXPECT_GE(some, 500);
}

struct Outcome {
  AttentionResult forward;
  AttentionGradientTensors backward;
};
Outcome attend_with(const Mask& mask, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& dout) {
  Outcome outcome;
  const AttentionOptions options{.mask = mask};
  outcome.forward = attention(q, k, v, options, {.lse = true, .weights = false});
  outcome.backward = attention_backward(dout, q, k, v, outcome.forward.out, outcome.forward.lse, options);
  return outcome;
}
void expect_same_bits(const Tensor& a, const Tensor& b, const char* what, std::uint64_t seed) {
  EXPECT_EQ(std::memcmp(a.view().data, b.view().data, static_cast<std::size_t>(a.size() * size_of(a.dtype()))), 0)
      << what << " of seed " << seed;
}

// The kernels skip what the plan says is not seen: the bits are those of the same mask written out.
TEST(MaskUnion, BitsOfTheWrittenOutMask) {
  using test::ops::random_tensor;
  const Sizes s{2, 4, 150, 700};
  for (std::uint64_t seed = 0; seed < 18; ++seed) {
    RandomMasks random(1000 + seed, s);
    const Mask mask = random.mask(static_cast<int64_t>(seed % 3));
    const Visible visible(mask, s);
    const DType dtype = seed / 3 % 2 == 0 ? DType::f32 : DType::bf16;
    const Tensor q = random_tensor(dtype, {s.B, s.H, s.M, 24}, 1), k = random_tensor(dtype, {s.B, 2, s.N, 24}, 2);
    const Tensor v = random_tensor(dtype, {s.B, 2, s.N, 40}, 3), dout = random_tensor(dtype, {s.B, s.H, s.M, 40}, 4);
    const Outcome a = attend_with(mask, q, k, v, dout);
    const Outcome b = attend_with(dense(visible.bits.data(), {s.B, s.H, s.M, s.N}), q, k, v, dout);
    expect_same_bits(a.forward.out, b.forward.out, "out", seed);
    expect_same_bits(a.forward.lse, b.forward.lse, "lse", seed);
    expect_same_bits(a.backward.dq, b.backward.dq, "dq", seed);
    expect_same_bits(a.backward.dk, b.backward.dk, "dk", seed);
    expect_same_bits(a.backward.dv, b.backward.dv, "dv", seed);
  }
}

}  // namespace
}  // namespace attend
