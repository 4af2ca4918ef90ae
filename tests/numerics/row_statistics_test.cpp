// Statistics of rows, gathered in the forward sweep: within their bounds of the dense truth, and always the same bits.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "attend/error.hpp"
#include "attend/paged_kv_cache.hpp"
#include "attend/runtime.hpp"
#include "support/compare.hpp"
#include "support/lens.hpp"
#include "support/tensors.hpp"

namespace attend::test {
namespace {

using std::int64_t;

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};

Case looked_at(MaskKind mask) {
  Case c;
  c.B = 2;
  c.H = 6;
  c.Hk = 2;
  c.M = 150;
  c.N = 1100;  // three splits, the last tile not whole
  c.D = c.E = 36;
  c.mask = mask;
  return c;
}

RowStatisticsOptions asked(const Case& c, int variant) {
  RowStatisticsOptions options;
  options.sink_tokens = variant % 3 * 2;
  options.sinks_apart = variant % 2 == 1;
  options.local_width = 3 + variant;
  options.recent_width = 40 * variant;
  if (variant % 4 != 1) options.tokens = drawn_tokens(c);
  if (variant % 5 == 2) options.diagonal = Align::first_key;
  return options;
}

Tensor rows_of(const Case& c) {
  return Tensor(DType::f32, {c.B, c.H, c.M, kRowStatistics});
}

void expect_within_bounds(const Problem& p, const RowStatisticsOptions& options) {
  const Truth truth = true_attention(p, true);
  for (const DType dtype : kDTypes) {
    Tensors t(p, dtype), alone(p, dtype);
    Tensor rows = rows_of(p.info);
    attention(t.q, t.k, t.v, t.out, p.options(dtype), {.lse = t.lse, .statistics = RowStatistics{rows, options}});
    EXPECT_EQ(compare_statistics(p, truth, options, rows), "") << p.info.problem_name() << " " << name(dtype);
    alone.forward(p.options(dtype));
    ASSERT_TRUE(same_bits(t.out, alone.out)) << p.info.problem_name();  // looking changes nothing
    ASSERT_TRUE(same_bits(t.lse, alone.lse)) << p.info.problem_name();
  }
}

TEST(RowStatistics, OfEveryMask) {
  for (int mask = 0; mask <= static_cast<int>(kLastMask); ++mask) {
    Case c = looked_at(static_cast<MaskKind>(mask));
    c.sinks = mask % 2 == 0;
    c.dropout = mask % 3 == 0 ? 0.3 : 0;  // they are of the weights before dropout
    expect_within_bounds(Problem(c), asked(c, mask % 7));
  }
}

TEST(RowStatistics, OfEveryOption) {
  int variant = 0;
  for (const Case& given : extra_cases()) {
    if (given.dtype != DType::f32 || given.layout != Layout::bhld || given.M == 0 || given.B == 0 || given.H == 0)
      continue;
    if (++variant % 5 != 0) continue;
    Case c = given;
    c.backward = false;
    expect_within_bounds(Problem(c), asked(c, variant % 7));
  }
}

// Scores so large that one key takes all, and rows that see few keys.
TEST(RowStatistics, OfPeakedRows) {
  Case c = looked_at(MaskKind::causal_last);
  c.scale = 8.0;
  expect_within_bounds(Problem(c), asked(c, 2));
  c.M = 40;
  c.N = 3;
  c.mask = MaskKind::causal_first;
  expect_within_bounds(Problem(c), asked(c, 4));
}

TEST(RowStatistics, InDoubleAreTheReference) {
  Case c = looked_at(MaskKind::causal_window);
  c.M = 20;
  c.N = 90;
  c.sinks = true;
  const Problem p(c);
  const RowStatisticsOptions options = asked(c, 3);
  const Truth truth = true_attention(p, true);
  Tensors t(p, DType::f64);
  Tensor rows(DType::f64, {c.B, c.H, c.M, kRowStatistics}), narrow = rows_of(c);
  attention(t.q, t.k, t.v, t.out, p.options(DType::f64), {.statistics = RowStatistics{rows, options}});
  for (int64_t n = 0; n < rows.size(); ++n) narrow.data<float>()[n] = static_cast<float>(rows.data<double>()[n]);
  EXPECT_EQ(compare_statistics(p, truth, options, narrow), "");
}

class Threads {
 public:
  explicit Threads(int count) : before_(threads()) { set_threads(count); }
  ~Threads() { set_threads(before_); }

 private:
  int before_;
};

TEST(RowStatistics, AreTheSameBitsForAnyThreads) {
  for (const int64_t queries : {3, 150}) {
    Case c = looked_at(MaskKind::causal_last);
    c.M = queries;
    c.sinks = true;
    const Problem p(c);
    for (const DType dtype : kDTypes) {
      Tensors t(p, dtype);
      Tensor first = rows_of(c), other = rows_of(c);
      const auto run = [&](int count, Tensor& rows) {
        const Threads with(count);
        attention(t.q, t.k, t.v, t.out, p.options(dtype), {.statistics = RowStatistics{rows, asked(c, 0)}});
      };
      run(1, first);
      for (const int count : {2, 3, 7}) {
        run(count, other);
        ASSERT_TRUE(same_bits(first, other)) << count << " threads, " << name(dtype);
      }
    }
  }
}

// One query over many keys splits its keys; its statistics are the bits of its row in the whole. And a
// cache gives those of the keys that it holds.
TEST(RowStatistics, OfARowAloneAndOverACacheAreTheSame) {
  Case c = looked_at(MaskKind::causal_last);
  c.B = 1;
  c.M = c.N;
  c.D = c.E = 64;
  const Problem p(c);
  RowStatisticsOptions options = asked(c, 0);
  for (const DType dtype : kDTypes) {
    Tensors t(p, dtype);
    Tensor rows = rows_of(c), one(DType::f32, {1, c.H, 1, kRowStatistics}), cached = rows_of(c);
    attention(t.q, t.k, t.v, t.out, p.options(dtype), {.statistics = RowStatistics{rows, options}});
    const View q = slice(View(t.q), 2, c.M - 1, 1);
    Tensor out(dtype, {1, c.H, 1, c.E});
    attention(q, t.k, t.v, out, p.options(dtype), {.statistics = RowStatistics{one, options}});
    EXPECT_TRUE(same_bits(one, slice(View(rows), 2, c.M - 1, 1))) << name(dtype);

    PagedKvCache cache({dtype, c.Hk, c.D, c.E, PagedKvCache::pages_for(c.N)});
    const int64_t sequence = cache.add();
    cache.append(sequence, t.k, t.v);
    Tensor whole(dtype, p.out_shape());
    attention(t.q, cache, std::vector{sequence}, whole, p.options(dtype),
              {.statistics = RowStatistics{cached, options}});
    EXPECT_TRUE(same_bits(cached, rows)) << name(dtype);
    attention(q, cache, std::vector{sequence}, out, p.options(dtype), {.statistics = RowStatistics{one, options}});
    EXPECT_TRUE(same_bits(one, slice(View(rows), 2, c.M - 1, 1))) << name(dtype);
  }
}

TEST(RowStatistics, BadArguments) {
  const Case c = looked_at(MaskKind::none);
  const Problem p(c);
  Tensors t(p, DType::f32), wide(p, DType::f64);
  Tensor rows = rows_of(c), narrow(DType::f32, {c.B, c.H, c.M, kRowStatistics - 1});
  const auto with = [&](const RowStatistics& statistics) {
    attention(t.q, t.k, t.v, t.out, p.options(DType::f32), {.statistics = statistics});
  };
  EXPECT_THROW(with({narrow}), InvalidArgument);
  EXPECT_THROW(with({rows, {.sink_tokens = -1}}), InvalidArgument);
  EXPECT_THROW(with({rows, {.local_width = -1}}), InvalidArgument);
  EXPECT_THROW(with({rows, {.recent_width = -1}}), InvalidArgument);
  EXPECT_THROW(with({rows, {.tokens = {1, 2, 3}}}), InvalidArgument);
  EXPECT_THROW(with({rows, {.diagonal = Diagonal::at({1, 2, 3})}}), InvalidArgument);
  EXPECT_THROW(attention(wide.q, wide.k, wide.v, wide.out, p.options(DType::f64), {.statistics = RowStatistics{rows}}),
               InvalidArgument);
  EXPECT_NO_THROW(with({rows, {.sink_tokens = 1LL << 62, .local_width = 1LL << 62, .recent_width = 1LL << 62}}));
}

}  // namespace
}  // namespace attend::test
