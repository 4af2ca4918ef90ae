// What a NaN or an infinity may touch: the rows that see it and nothing else, to the bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/elements.hpp"
#include "support/tensors.hpp"

namespace attend::test {
namespace {

using std::int64_t;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64};
constexpr int kMasks = static_cast<int>(kLastMask) + 1;

// Every mask, plain and with score rules that would carry a NaN along: 0 * NaN is NaN.
Case masked_case(MaskKind mask, bool ruled = false) {
  Case c;
  c.B = 2;
  c.H = 4;
  c.Hk = 2;
  c.M = 41;
  c.N = 75;  // more than one tile
  c.D = 20;
  c.E = 12;
  c.mask = mask;
  c.backward = true;
  if (!ruled) return c;
  c.softcap = 6;
  c.rule = RuleKind::curve;
  c.slopes = SlopesKind::shared;
  c.dropout = 0.2;
  return c;
}

// f(problem) for every mask, plain and ruled.
template <class F>
void for_masks(F&& f) {
  for (int mask = 0; mask < kMasks; ++mask) {
    for (const bool ruled : {false, true}) {
      f(Problem(masked_case(static_cast<MaskKind>(mask), ruled)));
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// Which rows and keys a poisoned key or query may reach in KV head hk of batch b.
struct Reach {
  const Problem& p;
  int64_t b, hk;

  int64_t group() const { return p.info.H / p.info.Hk; }
  bool sees(int64_t h, int64_t i, int64_t j) const { return h / group() == hk && p.visible_row(b, h, i)[j] != 0; }
  // Whether one of the heads of hk has a row that sees both keys.
  bool shares_row(int64_t j, int64_t other) const {
    for (int64_t h = hk * group(); h < (hk + 1) * group(); ++h) {
      for (int64_t i = 0; i < p.info.M; ++i) {
        if (sees(h, i, j) && sees(h, i, other)) return true;
      }
    }
    return false;
  }
};

template <class F>
void for_rows(const Shape& shape, F&& f) {
  for (int64_t b = 0; b < shape[0]; ++b) {
    for (int64_t h = 0; h < shape[1]; ++h) {
      for (int64_t i = 0; i < shape[2]; ++i) {
        f(b, h, i);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

// Key j of one KV head is NaN. Rows that see it show it; every other row, and every key that shares no row with it,
// keeps its bits.
void check_poisoned_key(const Problem& p, const Tensors& clean, DType dtype, int64_t b0, int64_t hk, int64_t j) {
  Tensors dirty(p, dtype);
  set_row(dirty.k, b0, hk, j, kNan);
  set_row(dirty.v, b0, hk, j, kNan);
  dirty.run(p.options(dtype));
  const Reach reach{p, b0, hk};
  const std::string where = p.info.problem_name() + " " + name(dtype) + " key " + std::to_string(j);
  for_rows(p.out_shape(), [&](int64_t b, int64_t h, int64_t i) {
    if (b == b0 && reach.sees(h, i, j)) {
      ASSERT_TRUE(row_has_nan(dirty.out, b, h, i)) << where << " hides in out row " << i;
    } else {
      ASSERT_TRUE(same_row(dirty.out, clean.out, b, h, i)) << where << " leaks into out row " << i;
      ASSERT_TRUE(same_row(dirty.lse, clean.lse, b, h, i)) << where << " leaks into lse row " << i;
      ASSERT_TRUE(same_row(dirty.dq, clean.dq, b, h, i)) << where << " leaks into dq row " << i;
    }
  });
  for_rows(p.k_shape(), [&](int64_t b, int64_t h, int64_t other) {
    if (b == b0 && h == hk && reach.shares_row(j, other)) return;
    ASSERT_TRUE(same_row(dirty.dk, clean.dk, b, h, other)) << where << " leaks into dk row " << other;
    ASSERT_TRUE(same_row(dirty.dv, clean.dv, b, h, other)) << where << " leaks into dv row " << other;
  });
}

TEST(Nan, KeyReachesOnlyRowsThatSeeIt) {
  for_masks([](const Problem& problem) {
    for (const DType dtype : kDTypes) {
      Tensors clean(problem, dtype);
      clean.run(problem.options(dtype));
      for (const int64_t j : {0, 1, 17, 40, 63, 64, 70, 74}) {
        check_poisoned_key(problem, clean, dtype, 1, 1, j);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  });
}

// Everything that no query sees is NaN at once: all bits stay, and the gradients of hidden keys are 0.
TEST(Nan, HiddenKeysNeverLeak) {
  for_masks([&](const Problem& p) {
    for (const DType dtype : kDTypes) {
      Tensors clean(p, dtype);
      clean.run(p.options(dtype));
      Tensors dirty(p, dtype);
      std::vector<std::array<int64_t, 3>> hidden;
      for_rows(p.k_shape(), [&](int64_t b, int64_t hk, int64_t j) {
        if (Reach{p, b, hk}.shares_row(j, j)) return;
        hidden.push_back({b, hk, j});
        set_row(dirty.k, b, hk, j, j % 2 == 0 ? kNan : kInfinity);
        set_row(dirty.v, b, hk, j, j % 3 == 0 ? kInfinity : kNan);
      });
      dirty.run(p.options(dtype));
      const std::string where = p.info.problem_name() + " " + name(dtype);
      ASSERT_EQ(dirty.difference(clean), "") << where;
      for (const auto& [b, hk, j] : hidden) {
        ASSERT_TRUE(row_is(dirty.dk, b, hk, j, 0) && row_is(dirty.dv, b, hk, j, 0)) << where << " key " << j;
      }
    }
  });
}

// Queries that see nothing are NaN, in Q and in the incoming gradient: zeros come out, and nothing else moves.
TEST(Nan, BlindQueriesNeverLeak) {
  int64_t blind_rows = 0;
  for_masks([&](const Problem& p) {
    for (const DType dtype : kDTypes) {
      Tensors clean(p, dtype);
      clean.run(p.options(dtype));
      Tensors dirty(p, dtype);
      for_rows(p.q_shape(), [&](int64_t b, int64_t h, int64_t i) {
        const std::uint8_t* visible = p.visible_row(b, h, i);
        if (std::find_if(visible, visible + p.info.N, [](auto x) { return x != 0; }) != visible + p.info.N) return;
        ++blind_rows;
        set_row(dirty.q, b, h, i, kNan);
        set_row(dirty.dout, b, h, i, i % 2 == 0 ? kNan : kInfinity);
        EXPECT_TRUE(row_is(clean.out, b, h, i, 0) && row_is(clean.lse, b, h, i, -kInfinity) &&
                    row_is(clean.dq, b, h, i, 0))
            << p.info.problem_name() << " " << name(dtype) << " row " << i;
      });
      dirty.run(p.options(dtype));
      ASSERT_EQ(dirty.difference(clean), "") << p.info.problem_name() << " " << name(dtype);
    }
  });
  EXPECT_GT(blind_rows, 100);
}

// A poisoned query or gradient row shows in its own row and in the keys it sees.
TEST(Nan, QueryStaysInItsRow) {
  for_masks([&](const Problem& p) {
    for (const DType dtype : kDTypes) {
      Tensors clean(p, dtype);
      clean.run(p.options(dtype));
      for (const double poison : {kNan, kInfinity}) {
        for (const bool in_q : {true, false}) {
          const int64_t b0 = 1, h0 = 2, i0 = 13;
          Tensors dirty(p, dtype);
          set_row(in_q ? dirty.q : dirty.dout, b0, h0, i0, poison);
          dirty.run(p.options(dtype));
          const std::string where = p.info.problem_name() + " " + name(dtype) + (in_q ? " q" : " dout");
          for_rows(p.q_shape(), [&](int64_t b, int64_t h, int64_t i) {
            if (b == b0 && h == h0 && i == i0) return;
            ASSERT_TRUE(same_row(dirty.out, clean.out, b, h, i)) << where << " leaks into out row " << i;
            ASSERT_TRUE(same_row(dirty.lse, clean.lse, b, h, i)) << where << " leaks into lse row " << i;
            ASSERT_TRUE(same_row(dirty.dq, clean.dq, b, h, i)) << where << " leaks into dq row " << i;
          });
          for_rows(p.k_shape(), [&](int64_t b, int64_t hk, int64_t j) {
            if (b == b0 && Reach{p, b, hk}.sees(h0, i0, j)) return;
            ASSERT_TRUE(same_row(dirty.dk, clean.dk, b, hk, j)) << where << " leaks into dk row " << j;
            ASSERT_TRUE(same_row(dirty.dv, clean.dv, b, hk, j)) << where << " leaks into dv row " << j;
          });
        }
      }
    }
  });
}

// One element of V: its column of the rows that see it, and no other column.
TEST(Nan, ValueStaysInItsColumn) {
  for (const MaskKind mask : {MaskKind::none, MaskKind::causal_last, MaskKind::blocks}) {
    const Problem p(masked_case(mask));
    for (const DType dtype : kDTypes) {
      Tensors clean(p, dtype);
      clean.forward(p.options(dtype));
      for (const double poison : {kNan, kInfinity, -kInfinity}) {
        const int64_t b0 = 0, hk = 1, j = 20, e0 = 5;
        Tensors dirty(p, dtype);
        store(dirty.v, b0, hk, j, e0, poison);
        dirty.forward(p.options(dtype));
        for_rows(p.out_shape(), [&](int64_t b, int64_t h, int64_t i) {
          for (int64_t e = 0; e < p.info.E; ++e) {
            const double got = load(dirty.out, b, h, i, e);
            if (b == b0 && e == e0 && Reach{p, b, hk}.sees(h, i, j)) {
              ASSERT_FALSE(std::isfinite(got)) << p.info.problem_name() << " " << name(dtype) << " row " << i;
            } else {
              ASSERT_EQ(got, load(clean.out, b, h, i, e)) << p.info.problem_name() << " " << name(dtype);
            }
          }
        });
      }
    }
  }
}

// A score of +inf, or one that is NaN, makes its row NaN and no other.
TEST(Nan, InfiniteScoreStaysInItsRow) {
  Case c = masked_case(MaskKind::causal_last);
  c.bias = BiasKind::full;
  c.f32_bias = true;
  const Problem p(c);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    Tensors clean(p, dtype);
    clean.forward(p.options(dtype));
    for (const double poison : {kInfinity, kNan}) {
      const int64_t b0 = 1, h0 = 2, i0 = 13;
      std::vector<float> bias = p.bias;
      bias[static_cast<std::size_t>(((b0 * c.H + h0) * c.M + i0) * c.N + 5)] = static_cast<float>(poison);
      AttentionOptions options = p.options(dtype);
      options.bias = view_of(std::as_const(bias).data(), p.bias_shape);
      Tensors dirty(p, dtype);
      dirty.forward(options);
      for_rows(p.out_shape(), [&](int64_t b, int64_t h, int64_t i) {
        if (b == b0 && h == h0 && i == i0) {
          ASSERT_TRUE(row_has_nan(dirty.out, b, h, i)) << name(dtype);
        } else {
          ASSERT_TRUE(same_row(dirty.out, clean.out, b, h, i)) << name(dtype) << " row " << i;
          ASSERT_TRUE(same_row(dirty.lse, clean.lse, b, h, i)) << name(dtype) << " row " << i;
        }
      });
    }
  }
}

// A bias of -inf hides its key as a mask does, whatever K, V, or a query that has nothing else, hold there.
TEST(Nan, BiasOfMinusInfinityHidesItsKey) {
  for (const DType dtype : kDTypes) {
    for (const auto& [M, dim] : {std::pair<int64_t, int64_t>{41, 12}, {41, 40}, {2, 64}}) {
      Case c = masked_case(MaskKind::none);
      c.M = M;
      c.N = 128 + 7;
      c.D = c.E = dim;
      c.bias = BiasKind::full;
      c.f32_bias = true;
      const Problem p(c);
      const auto hidden_key = [](int64_t j) { return j % 3 == 0; };
      const auto hidden_row = [](int64_t i) { return i % 5 == 1; };
      std::vector<float> bias = p.bias;
      for (std::size_t n = 0; n < bias.size(); ++n) {
        const int64_t j = static_cast<int64_t>(n) % c.N, i = static_cast<int64_t>(n) / c.N % c.M;
        if (hidden_key(j) || hidden_row(i)) bias[n] = -std::numeric_limits<float>::infinity();
      }
      AttentionOptions options = p.options(dtype);
      options.bias = view_of(std::as_const(bias).data(), p.bias_shape);
      Tensors clean(p, dtype), dirty(p, dtype);
      for (const double poison : {kNan, kInfinity}) {
        for_rows(p.k_shape(), [&](int64_t b, int64_t h, int64_t j) {
          if (!hidden_key(j)) return;
          set_row(dirty.k, b, h, j, poison);
          set_row(dirty.v, b, h, j, poison);
        });
        for_rows(p.q_shape(), [&](int64_t b, int64_t h, int64_t i) {
          if (!hidden_row(i)) return;
          set_row(dirty.q, b, h, i, poison);
          set_row(dirty.dout, b, h, i, poison);
        });
        clean.run(options);
        dirty.run(options);
        const std::string what = std::string(name(dtype)) + " " + std::to_string(M) + " rows of " + std::to_string(dim);
        ASSERT_EQ(dirty.difference(clean), "") << what;
      }
    }
  }
}

// A bias or a rule may hold anything where the mask hides the key.
TEST(Nan, HiddenBiasAndRuleNeverLeak) {
  for (const MaskKind mask : {MaskKind::causal_last, MaskKind::causal_window, MaskKind::padding,
                              MaskKind::segments_causal, MaskKind::blocks, MaskKind::dense, MaskKind::hidden_all}) {
    Case c = masked_case(mask);
    c.bias = BiasKind::full;
    c.f32_bias = true;
    Problem p(c);
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      Tensors clean(p, dtype);
      clean.run(p.options(dtype));
      std::vector<float> bias = p.bias;
      for (std::size_t n = 0; n < bias.size(); ++n) {
        const auto place = static_cast<int64_t>(n);
        const int64_t j = place % c.N, i = place / c.N % c.M, h = place / c.N / c.M % c.H, b = place / c.N / c.M / c.H;
        if (p.visible_row(b, h, i)[j] == 0) bias[n] = std::numeric_limits<float>::quiet_NaN();
      }
      AttentionOptions options = p.options(dtype);
      options.bias = view_of(std::as_const(bias).data(), p.bias_shape);
      Tensors dirty(p, dtype);
      dirty.run(options);
      ASSERT_EQ(dirty.difference(clean), "") << p.info.problem_name() << " " << name(dtype) << " bias";

      options = p.options(dtype);
      const auto poison = [&p](auto tile) {
        for (int64_t r = 0; r < tile.rows; ++r) {
          for (int64_t column = 0; column < tile.cols; ++column) {
            if (p.visible_row(tile.batch, tile.head, tile.first_row + r)[tile.first_col + column] == 0) {
              tile(r, column) = std::numeric_limits<float>::quiet_NaN();
            }
          }
        }
      };
      options.rule = ScoreRule(poison, [poison](auto, auto grad) { poison(grad); });
      Tensors ruled(p, dtype);
      ruled.run(options);
      ASSERT_EQ(ruled.difference(clean), "") << p.info.problem_name() << " " << name(dtype) << " rule";
    }
  }
}

}  // namespace
}  // namespace attend::test
