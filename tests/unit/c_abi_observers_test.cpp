// Tests of the C ABI of observers: the sums and the weights that C++ gives, and a status for all that is wrong.
#include <gtest/gtest.h>

#include <mutex>
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

constexpr std::int64_t B = 2, H = 2, M = 5, N = 70, D = 8, kSums = 3;

// f_n(i, j) = context^n * (i - j).
void place_values(void* context, std::int64_t n, const attend_tile* tile, float* values, std::int64_t stride) {
  float factor = 1;
  for (std::int64_t times = 0; times < n; ++times) factor *= *static_cast<const float*>(context);
  for (std::int64_t r = 0; r < tile->rows; ++r)
    for (std::int64_t c = 0; c < tile->cols; ++c)
      values[r * stride + c] = factor * static_cast<float>(tile->first_row + r - tile->first_col - c);
}

struct CAbiObservers : testing::Test {
  CAbiObservers()
      : q(drawn(1, {B, H, M, D})),
        k(drawn(2, {B, H, N, D})),
        v(drawn(3, {B, H, N, D})),
        out(DType::f32, q.shape()),
        lse(DType::f32, {B, H, M, 1}),
        weights(DType::f32, {B, H, M, N}),
        sums(DType::f32, {B, H, M, kSums}) {
    attend_attention_options_init(&options);
    options.softcap = 3;
    attend_row_sums_init(&row_sums);
    row_sums.sums = &c_sums;
    row_sums.values = &place_values;
    row_sums.context = &factor;
  }
  RowSums twin_sums(Tensor& into) {
    return {into, [this](std::int64_t n, ScoreTile<float> tile) {
              const attend_tile place{tile.rows, tile.cols, tile.batch, tile.head, tile.first_row, tile.first_col};
              place_values(&factor, n, &place, tile.data, tile.row_stride);
            }};
  }

  float factor = 0.5F;
  Tensor q, k, v, out, lse, weights, sums;
  attend_tensor cq = seen(q), ck = seen(k), cv = seen(v), cout = seen(out), clse = seen(lse), cweights = seen(weights),
                c_sums = seen(sums);
  attend_attention_options options;
  attend_row_sums row_sums;
};

TEST_F(CAbiObservers, RowSumsAreThoseOfCpp) {
  ASSERT_TRUE(is_ok(attend_attention_row_sums(&cq, &ck, &cv, &cout, &options, &clse, &cweights, &row_sums)));
  Tensor expected(DType::f32, out.shape()), expected_sums(DType::f32, sums.shape()),
      expected_lse(DType::f32, lse.shape());
  attention(q, k, v, expected, {.softcap = 3}, {.lse = expected_lse, .row_sums = twin_sums(expected_sums)});
  EXPECT_TRUE(same_bits(out, expected));
  EXPECT_TRUE(same_bits(lse, expected_lse));
  EXPECT_TRUE(same_bits(sums, expected_sums));
  double first = 0;
  for (std::int64_t j = 0; j < N; ++j)
    first += static_cast<double>(weights.data<float>()[j]) * static_cast<double>(0 - j);
  EXPECT_NEAR(static_cast<double>(sums.data<float>()[0]), first, 1e-3);
}

TEST_F(CAbiObservers, RowSumsOverACacheAreThoseOfCpp) {
  PagedKvCache twin({.kv_heads = H, .key_dim = D, .value_dim = D, .pages = 4});
  attend_paged_kv_cache_options cache_options;
  attend_paged_kv_cache_options_init(&cache_options);
  cache_options.kv_heads = H, cache_options.key_dim = D, cache_options.value_dim = D, cache_options.pages = 4;
  attend_paged_kv_cache* cache = nullptr;
  ASSERT_TRUE(is_ok(attend_paged_kv_cache_create(&cache_options, &cache)));
  Tensor keys = drawn(7, {1, H, N, D});
  const attend_tensor c_keys = seen(keys);
  std::vector<std::int64_t> sequences(B);
  for (std::int64_t& sequence : sequences) {
    ASSERT_TRUE(is_ok(attend_paged_kv_cache_add(cache, &sequence)));
    ASSERT_TRUE(is_ok(attend_paged_kv_cache_append(cache, sequence, &c_keys, &c_keys)));
    twin.append(twin.add(), keys, keys);
  }
  EXPECT_TRUE(is_ok(attend_paged_attention(&cq, cache, sequences.data(), B, &cout, &options, &clse, &row_sums)));
  attend_paged_kv_cache_free(cache);
  Tensor expected(DType::f32, out.shape()), expected_sums(DType::f32, sums.shape());
  attention(q, twin, sequences, expected, {.softcap = 3}, {.row_sums = twin_sums(expected_sums)});
  EXPECT_TRUE(same_bits(out, expected));
  EXPECT_TRUE(same_bits(sums, expected_sums));
}

struct Visited {
  Visited() : weights(DType::f32, {B, H, M, N}) {}

  std::mutex lock;
  Tensor weights;
};

void visit(void* context, const attend_tile* tile, const float* shown, std::int64_t stride) {
  auto& seen_so_far = *static_cast<Visited*>(context);
  const std::scoped_lock hold(seen_so_far.lock);
  float* all = seen_so_far.weights.data<float>() + (tile->batch * H + tile->head) * M * N;
  for (std::int64_t r = 0; r < tile->rows; ++r)
    for (std::int64_t c = 0; c < tile->cols; ++c)
      all[(tile->first_row + r) * N + tile->first_col + c] += shown[r * stride + c];
}

TEST_F(CAbiObservers, EveryWeightIsVisited) {
  ASSERT_TRUE(is_ok(attend_attention(&cq, &ck, &cv, &cout, &options, &clse, &cweights)));
  Visited visited, twin;
  ASSERT_TRUE(is_ok(attend_visit_weights(&cq, &ck, &clse, &options, &visit, &visited)));
  visit_weights(q, k, lse,
                [&](ScoreTile<const float> tile) {
                  const attend_tile place{tile.rows, tile.cols, tile.batch, tile.head, tile.first_row, tile.first_col};
                  visit(&twin, &place, tile.data, tile.row_stride);
                },
                {.softcap = 3});
  EXPECT_TRUE(same_bits(visited.weights, twin.weights));
  for (std::int64_t n = 0; n < weights.size(); ++n)
    ASSERT_NEAR(visited.weights.data<float>()[n], weights.data<float>()[n], 1e-6);
}

TEST_F(CAbiObservers, BadArgumentsAreRefused) {
  const auto sums_refused = [&](const char* words) {
    return is_refused(attend_attention_row_sums(&cq, &ck, &cv, &cout, &options, nullptr, nullptr, &row_sums), words);
  };
  EXPECT_TRUE(is_refused(attend_attention_row_sums(&cq, &ck, &cv, &cout, &options, nullptr, nullptr, nullptr),
                         "row_sums is null"));
  row_sums.values = nullptr;
  EXPECT_TRUE(sums_refused("row_sums.values is null"));
  row_sums.values = &place_values;
  row_sums.sums = nullptr;
  EXPECT_TRUE(sums_refused("row_sums.sums is null"));
  row_sums.sums = &clse;
  c_sums.shape[2] = M + 1;
  row_sums.sums = &c_sums;
  EXPECT_TRUE(sums_refused("row sums"));
  row_sums.struct_size = 5;
  EXPECT_TRUE(sums_refused("attend_row_sums_init"));

  EXPECT_TRUE(is_refused(attend_visit_weights(&cq, &ck, &clse, &options, nullptr, nullptr), "visitor is null"));
  EXPECT_TRUE(is_refused(attend_visit_weights(nullptr, &ck, &clse, &options, &visit, nullptr), "q is null"));
  EXPECT_TRUE(is_refused(attend_visit_weights(&cq, &ck, nullptr, &options, &visit, nullptr), "lse is null"));
  EXPECT_TRUE(is_refused(attend_visit_weights(&cq, &ck, &cout, &options, &visit, nullptr), "lse shape"));
  Tensor wide = drawn(1, q.shape(), DType::f64);
  const attend_tensor c_wide = seen(wide);
  EXPECT_TRUE(is_refused(attend_visit_weights(&c_wide, &c_wide, &clse, nullptr, &visit, nullptr), "got f64"));
}

// A callback of C++ that throws although it must not: still a status.
TEST_F(CAbiObservers, WhatACallbackThrowsIsAStatus) {
  ASSERT_TRUE(is_ok(attend_attention(&cq, &ck, &cv, &cout, nullptr, &clse, nullptr)));
  const auto thrower = [](void*, const attend_tile*, const float*, std::int64_t) { throw std::runtime_error("mine"); };
  EXPECT_EQ(attend_visit_weights(&cq, &ck, &clse, nullptr, thrower, nullptr), ATTEND_INTERNAL_ERROR);
  EXPECT_STREQ(attend_last_error(), "mine");
}

}  // namespace
}  // namespace attend
