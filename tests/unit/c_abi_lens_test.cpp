// Tests of the C ABI of the lens: what C++ gives, and a status for all that is wrong.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "attend/attend.hpp"
#include "unit/c_abi_tensors.hpp"

namespace attend {
namespace {

using test::drawn;
using test::is_ok;
using test::is_refused;
using test::same_bits;
using test::seen;

constexpr std::int64_t B = 2, H = 2, M = 40, N = 70, D = 8;

struct CAbiLens : testing::Test {
  CAbiLens()
      : q(drawn(1, {B, H, M, D})),
        k(drawn(2, {B, H, N, D})),
        v(drawn(3, {B, H, N, D})),
        out(DType::f32, q.shape()),
        lse(DType::f32, {B, H, M, 1}),
        rows(DType::f32, {B, H, M, kRowStatistics}),
        twin(q, k, {.mask = causal()}, {.v = View(v)}) {
    attend_attention_options_init(&options);
    attend_mask_causal(ATTEND_LAST_KEY, &mask);
    options.mask = mask;
    attend_row_statistics_init(&statistics);
    statistics.rows = &c_rows;
    EXPECT_TRUE(is_ok(attend_lens_create(&cq, &ck, &cv, nullptr, &options, &lens)));
  }
  ~CAbiLens() override {
    attend_lens_free(lens);
    attend_mask_free(mask);
  }

  Tensor q, k, v, out, lse, rows;
  attend_tensor cq = seen(q), ck = seen(k), cv = seen(v), cout = seen(out), clse = seen(lse), c_rows = seen(rows);
  attend_mask* mask = nullptr;
  attend_attention_options options;
  attend_row_statistics statistics;
  attend_lens* lens = nullptr;
  Lens twin;
};

TEST_F(CAbiLens, StatisticsAreTheSame) {
  std::vector<std::int32_t> tokens;
  for (std::int32_t j = 0; j < N; ++j) tokens.push_back(j % 7);
  statistics.tokens = tokens.data();
  statistics.token_count = N;
  statistics.local_width = 3;
  statistics.sinks_apart = 1;
  RowStatisticsOptions asked;
  asked.tokens = tokens;
  asked.local_width = 3;
  asked.sinks_apart = true;
  const Tensor expected = twin.statistics(asked);
  EXPECT_TRUE(is_ok(attend_attention_statistics(&cq, &ck, &cv, &cout, &options, &clse, &statistics)));
  EXPECT_TRUE(same_bits(rows, expected));
  Tensor again(DType::f32, rows.shape()), again_lse(DType::f32, lse.shape());
  attend_tensor c_again = seen(again), c_again_lse = seen(again_lse);
  statistics.rows = &c_again;
  EXPECT_TRUE(is_ok(attend_lens_statistics(lens, &statistics)));
  EXPECT_TRUE(same_bits(again, expected));
  EXPECT_TRUE(is_ok(attend_lens_lse(lens, &c_again_lse)));
  EXPECT_TRUE(same_bits(again_lse, lse));
}

TEST_F(CAbiLens, MapsAndZoomAreTheSame) {
  Tensor mass(DType::f32, {1, 1, 5, 6}), peak(DType::f32, {1, 1, 5, 6}), zoom(DType::f32, {1, 1, 4, 9}),
      received(DType::f32, {1, 1, 1, N}), weights(DType::f32, {1, 1, M, 3});
  attend_tensor c_mass = seen(mass), c_peak = seen(peak), c_zoom = seen(zoom), c_received = seen(received),
                c_weights = seen(weights);
  std::int32_t finished = -1;
  std::int64_t bands = 0;
  const auto count = [](void* context, std::int64_t, std::int64_t shown, std::int64_t, const float*, const float*) {
    *static_cast<std::int64_t*>(context) += shown;
    return std::int32_t{1};
  };
  EXPECT_TRUE(is_ok(attend_lens_map(lens, 1, 1, nullptr, &c_mass, &c_peak, count, &bands, &finished)));
  const PooledMap map = twin.map({1, 1}, {.rows = 5, .cols = 6});
  EXPECT_TRUE(same_bits(mass, map.mass));
  EXPECT_TRUE(same_bits(peak, map.peak));
  EXPECT_EQ(finished, 1);
  EXPECT_EQ(bands, 5);
  const attend_lens_area area{10, 4, 20, 9};
  EXPECT_TRUE(is_ok(attend_lens_zoom(lens, 0, 1, &area, &c_zoom)));
  EXPECT_TRUE(same_bits(zoom, twin.zoom({0, 1}, {10, 4, 20, 9})));
  EXPECT_TRUE(is_ok(attend_lens_received(lens, 0, 1, nullptr, &c_received)));
  EXPECT_TRUE(same_bits(received, twin.received({0, 1})));
  std::vector<std::int64_t> keys(M * 3), counts(9);
  EXPECT_TRUE(is_ok(attend_lens_top_keys(lens, 0, 1, 3, nullptr, keys.data(), &c_weights)));
  EXPECT_EQ(keys, twin.top_keys({0, 1}, 3).keys);
  EXPECT_TRUE(is_ok(attend_lens_histogram(lens, 0, 1, 8, nullptr, counts.data())));
  EXPECT_EQ(counts[2], twin.histogram({0, 1}, 8).counts[2]);
  EXPECT_EQ(counts[8], twin.histogram({0, 1}, 8).below);
}

TEST_F(CAbiLens, CellsAreTheSame) {
  std::vector<double> products(D), weighted(D);
  attend_cell cell;
  attend_cell_init(&cell);
  cell.products = products.data();
  cell.weighted = weighted.data();
  EXPECT_TRUE(is_ok(attend_lens_cell(lens, 1, 0, 12, 30, &cell)));
  const CellArithmetic expected = twin.cell({1, 0}, 12, 30);
  EXPECT_EQ(products, expected.products);
  EXPECT_EQ(weighted, expected.weighted);
  EXPECT_EQ(cell.weight, expected.weight);
  EXPECT_EQ(cell.visible, 1);
  EXPECT_EQ(cell.sink, -INFINITY);
}

TEST_F(CAbiLens, OverPages) {
  attend_paged_kv_cache_options wanted;
  attend_paged_kv_cache_options_init(&wanted);
  wanted.kv_heads = H;
  wanted.key_dim = wanted.value_dim = D;
  wanted.pages = 4;
  attend_paged_kv_cache* cache = nullptr;
  ASSERT_TRUE(is_ok(attend_paged_kv_cache_create(&wanted, &cache)));
  std::int64_t sequence = -1;
  attend_paged_kv_cache_add(cache, &sequence);
  attend_tensor q1 = cq, k1 = ck, v1 = cv, out1 = cout, rows1 = c_rows, lse1 = clse;
  for (attend_tensor* x : {&q1, &k1, &v1, &out1, &rows1, &lse1}) x->shape[0] = 1;
  ASSERT_TRUE(is_ok(attend_paged_kv_cache_append(cache, sequence, &k1, &v1)));
  statistics.rows = &rows1;
  EXPECT_TRUE(is_ok(attend_paged_attention_statistics(&q1, cache, &sequence, 1, &out1, &options, &lse1, &statistics)));
  const Tensor expected = twin.statistics();
  EXPECT_EQ(rows.data<float>()[100], expected.data<float>()[100]);
  attend_lens* paged = nullptr;
  ASSERT_TRUE(is_ok(attend_lens_create_paged(&q1, cache, &sequence, 1, &lse1, &options, &paged)));
  Tensor zoom(DType::f32, {1, 1, M, N});
  attend_tensor c_zoom = seen(zoom);
  EXPECT_TRUE(is_ok(attend_lens_zoom(paged, 0, 1, nullptr, &c_zoom)));
  EXPECT_TRUE(same_bits(zoom, twin.zoom({0, 1}, {})));
  attend_lens_free(paged);
  attend_paged_kv_cache_free(cache);
}

TEST_F(CAbiLens, WrongArgumentsAreRefused) {
  attend_lens* none = nullptr;
  EXPECT_TRUE(is_refused(attend_lens_create(nullptr, &ck, nullptr, nullptr, nullptr, &none), "q"));
  EXPECT_TRUE(is_refused(attend_lens_create(&cq, &ck, nullptr, &cq, nullptr, &none), "lse"));
  EXPECT_TRUE(is_refused(attend_lens_create_paged(&cq, nullptr, nullptr, 0, nullptr, nullptr, &none), "cache"));
  EXPECT_TRUE(is_refused(attend_lens_zoom(nullptr, 0, 0, nullptr, &cq), "lens"));
  EXPECT_TRUE(is_refused(attend_lens_zoom(lens, 0, 0, nullptr, &cq), "weights"));
  EXPECT_TRUE(is_refused(attend_lens_zoom(lens, 0, 2, nullptr, &cq), "head"));
  EXPECT_TRUE(is_refused(attend_lens_map(lens, 0, 0, nullptr, &cq, &cq, nullptr, nullptr, nullptr), "mass"));
  EXPECT_TRUE(is_refused(attend_lens_top_keys(lens, 0, 0, 3, nullptr, nullptr, &cq), "keys"));
  EXPECT_TRUE(is_refused(attend_lens_histogram(lens, 0, 0, 3, nullptr, nullptr), "counts"));
  EXPECT_TRUE(is_refused(attend_lens_cell(lens, 0, 0, 3, 3, nullptr), "cell"));
  EXPECT_TRUE(is_refused(attend_lens_statistics(lens, nullptr), "statistics"));
  statistics.token_count = 3;
  EXPECT_TRUE(is_refused(attend_lens_statistics(lens, &statistics), "tokens"));
  statistics.token_count = 0;
  statistics.rows = &cq;
  EXPECT_TRUE(is_refused(attend_lens_statistics(lens, &statistics), "rows"));
  attend_lens_free(nullptr);
}

}  // namespace
}  // namespace attend
