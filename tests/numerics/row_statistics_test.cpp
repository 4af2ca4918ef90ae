// Statistics of rows, gathered in the forward sweep: within their bounds of the dense truth, and always the same bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "attend/error.hpp"
#include "attend/paged_kv_cache.hpp"
#include "attend/runtime.hpp"
#include "support/buffer.hpp"
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

// Weights that are all alike count keys, so that one key more or less at an edge is seen: at the ends of tiles and
// splits, of the widths and of the sinks. Of keys that are alike the first has the largest weight.
TEST(RowStatistics, OfEqualWeightsCountKeys) {
  const int64_t N = 1100, D = 16;
  std::vector<std::int32_t> ids;
  for (int64_t j = 0; j < N; ++j) ids.push_back(static_cast<std::int32_t>(j * j % 37));
  const Tensor k = to_tensor(DType::f32, {1, 1, N, D}, std::vector<float>(static_cast<std::size_t>(N * D), 1.0F));
  for (const int64_t M : {int64_t{1}, int64_t{70}, N})
    for (const auto& [mask, left, right] : {std::tuple{causal(), N, int64_t{0}},
                                            {window(600, 0), int64_t{600}, int64_t{0}},
                                            {no_mask(), N, N},
                                            {window(70, 3), int64_t{70}, int64_t{3}}})
      for (const auto& [sinks, apart, local, recent] : {std::tuple{int64_t{0}, false, int64_t{0}, int64_t{1}},
                                                        {1, false, 1, 64},
                                                        {64, true, 63, 64},
                                                        {65, true, 511, 512},
                                                        {513, false, 2000, 513}}) {
        const Tensor q(DType::f32, {1, 1, M, D});
        Tensor out(DType::f32, {1, 1, M, D}), rows(DType::f32, {1, 1, M, kRowStatistics});
        const RowStatisticsOptions options{
            .sink_tokens = sinks, .sinks_apart = apart, .local_width = local, .recent_width = recent, .tokens = ids};
        attention(q, k, k, out, {.mask = mask}, {.statistics = RowStatistics{rows, options}});
        for (int64_t i = 0; i < M; ++i) {
          const int64_t p = N - M + i, first = std::max<int64_t>(0, p - left), last = std::min(N - 1, p + right);
          std::array<int64_t, kRowStatistics> keys{};
          const auto count = [&](RowStatistic what, bool yes) { keys[static_cast<std::size_t>(what)] += yes ? 1 : 0; };
          for (int64_t j = first; j <= last; ++j) {
            count(RowStatistic::sink_tokens, j < sinks);
            if (apart && j < sinks) continue;
            const auto id = [&](int64_t at) { return ids[static_cast<std::size_t>(at)]; };
            count(RowStatistic::self, j == p);
            count(RowStatistic::previous, j == p - 1);
            count(RowStatistic::local, std::abs(p - j) <= local);
            count(RowStatistic::recent, std::abs(p - j) <= recent);
            count(RowStatistic::duplicate, j != p && id(j) == id(p));
            count(RowStatistic::induction, j > 0 && id(j - 1) == id(p));
          }
          const auto got = [&](RowStatistic what) {
            return static_cast<double>(rows.data<float>()[i * kRowStatistics + static_cast<int64_t>(what)]);
          };
          const auto n = static_cast<double>(last - first + 1);
          for (const RowStatistic what :
               {RowStatistic::sink_tokens, RowStatistic::self, RowStatistic::previous, RowStatistic::local,
                RowStatistic::recent, RowStatistic::duplicate, RowStatistic::induction})
            ASSERT_NEAR(got(what) * n, static_cast<double>(keys[static_cast<std::size_t>(what)]), 0.01)
                << "statistic " << static_cast<int>(what) << " of query " << p << ", " << sinks << " sinks";
          ASSERT_NEAR(got(RowStatistic::mass), 1, 1e-5);
          ASSERT_NEAR(got(RowStatistic::maximum) * n, 1, 1e-4);
          ASSERT_EQ(got(RowStatistic::argmax), static_cast<double>(first)) << p;
          ASSERT_NEAR(got(RowStatistic::entropy), std::log(n), 1e-4);
          ASSERT_NEAR(got(RowStatistic::distance_mean), static_cast<double>(p) - static_cast<double>(first + last) / 2,
                      1e-3 * n);
          ASSERT_NEAR(got(RowStatistic::distance_variance), (n * n - 1) / 12, 1e-3 * n * n);
        }
      }
}

// Of several keys with the largest weight the first is named, wherever the tiles and splits lie.
TEST(RowStatistics, TheFirstOfEqualMaximaIsNamed) {
  const int64_t N = 1100, D = 16;
  for (const DType dtype : kDTypes)
    for (const auto& [first, second] :
         {std::pair<int64_t, int64_t>{0, 1}, {3, 40}, {63, 64}, {70, 600}, {511, 512}, {700, 1099}}) {
      std::vector<float> keys(static_cast<std::size_t>(N * D), 0.5F);
      for (const int64_t top : {first, second}) std::fill_n(keys.begin() + top * D, D, 2.0F);
      const Tensor k = to_tensor(dtype, {1, 1, N, D}, keys);
      for (const int64_t M : {1, 70}) {
        const Tensor q = to_tensor(dtype, {1, 1, M, D}, std::vector<float>(static_cast<std::size_t>(M * D), 1.0F));
        Tensor out(dtype, {1, 1, M, D}), rows(DType::f32, {1, 1, M, kRowStatistics});
        attention(q, k, k, out, {}, {.statistics = RowStatistics{rows}});
        for (int64_t i = 0; i < M; ++i)
          ASSERT_EQ(rows.data<float>()[i * kRowStatistics + static_cast<int64_t>(RowStatistic::argmax)],
                    static_cast<float>(first))
              << name(dtype) << " query " << i << " of " << M << ", also " << second;
      }
    }
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
