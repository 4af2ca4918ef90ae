// A call checks its arguments and lowers its mask once, whichever way it takes from there.
#include <gtest/gtest.h>

#include <vector>

#include "attend/attend.hpp"
#include "core/mask_plan.hpp"
#include "unit/op_testing.hpp"

namespace attend {
namespace {

using test::ops::random_tensor;

// How many masks f lowers.
template <class F>
std::int64_t lowered_by(const F& f) {
  const std::int64_t before = MaskPlan::lowered();
  f();
  return MaskPlan::lowered() - before;
}

constexpr DType kDTypes[] = {DType::f32, DType::f16, DType::bf16, DType::f64};

struct Inputs {
  explicit Inputs(DType dtype, std::int64_t M = 9, std::int64_t N = 70)
      : q(random_tensor(dtype, {2, 4, M, 8}, 1)),
        k(random_tensor(dtype, {2, 2, N, 8}, 2)),
        v(random_tensor(dtype, {2, 2, N, 8}, 3)) {}
  Tensor q, k, v;
};

std::vector<Mask> masks(std::int64_t N) {
  return {no_mask(), causal(), window(5, 0), padding({N, N / 2}), causal() & (window(3, kUnlimited) | columns(7, 0))};
}

TEST(CallPath, AttentionLowersItsMaskOnce) {
  for (const DType dtype : kDTypes) {
    const Inputs in(dtype);
    Tensor out(dtype, in.q.shape());
    for (const Mask& mask : masks(70)) {
      AttentionOptions options;
      options.mask = mask;
      EXPECT_EQ(lowered_by([&] { attention(in.q, in.k, in.v, out, options); }), 1);
      EXPECT_EQ(lowered_by([&] { attention(in.q, in.k, in.v, options, {.lse = true, .weights = true}); }), 1);
    }
  }
}

TEST(CallPath, BackwardLowersItsMaskOnce) {
  for (const DType dtype : kDTypes) {
    const Inputs in(dtype);
    Tensor dq(dtype, in.q.shape()), dk(dtype, in.k.shape()), dv(dtype, in.v.shape());
    for (const Mask& mask : masks(70)) {
      AttentionOptions options;
      options.mask = mask;
      const AttentionResult r = attention(in.q, in.k, in.v, options, {.lse = true});
      EXPECT_EQ(lowered_by([&] {
                  attention_backward(r.out, in.q, in.k, in.v, r.out, r.lse, {dq, dk, dv, {}, {}, {}}, options);
                }),
                1);
      EXPECT_EQ(lowered_by([&] { attention_backward(r.out, in.q, in.k, in.v, r.out, r.lse, options); }), 1);
    }
  }
}

// Scores too large for an LSE to tell the weights: rows' maxima and sums are made again, of the same call.
TEST(CallPath, LargeScoresLowerTheMaskOnce) {
  const Inputs in(DType::f32);
  AttentionOptions options;
  options.mask = causal();
  options.scale = 1e6;
  const AttentionResult r = attention(in.q, in.k, in.v, options, {.lse = true});
  EXPECT_EQ(lowered_by([&] { attention_backward(r.out, in.q, in.k, in.v, r.out, r.lse, options); }), 1);
}

// A dilation is computed class by class: its mask once, and one for each group of classes and sequence.
TEST(CallPath, ClassesOfADilationLowerTheirOwnMasks) {
  const Inputs in(DType::f32, 600, 600);
  AttentionOptions options;
  options.mask = dilated(2) & causal();
  EXPECT_EQ(lowered_by([&] { attention(in.q, in.k, in.v, options); }), 1 + 2);
}

TEST(CallPath, ObserversLowerTheMaskOnce) {
  const Inputs in(DType::f32);
  AttentionOptions options;
  options.mask = causal();
  Tensor out(DType::f32, in.q.shape()), sums(DType::f32, {2, 4, 9, 1}), lse(DType::f32, {2, 4, 9, 1});
  const auto ones = [](std::int64_t, ScoreTile<float> tile) {
    for (std::int64_t r = 0; r < tile.rows; ++r)
      for (std::int64_t c = 0; c < tile.cols; ++c) tile(r, c) = 1;
  };
  EXPECT_EQ(lowered_by([&] {
              attention(in.q, in.k, in.v, out, options,
                        {.lse = lse.view(), .weights = {}, .row_sums = RowSums{sums, ones}});
            }),
            1);
  EXPECT_EQ(lowered_by([&] { visit_weights(in.q, in.k, lse, [](ScoreTile<const float>) {}, options); }), 1);
}

TEST(CallPath, AttentionOverACacheLowersItsMaskOnce) {
  const Inputs in(DType::f32);
  PagedKvCache cache({.dtype = DType::f32, .kv_heads = 2, .key_dim = 8, .value_dim = 8, .pages = 8});
  const std::int64_t sequence = cache.add(), other = cache.add();
  for (const std::int64_t s : {sequence, other})
    cache.append(s, random_tensor(DType::f32, {1, 2, 70, 8}, 4), random_tensor(DType::f32, {1, 2, 70, 8}, 5));
  Tensor out(DType::f32, in.q.shape());
  AttentionOptions options;
  options.mask = causal();
  const std::int64_t sequences[] = {sequence, other};
  EXPECT_EQ(lowered_by([&] { attention(in.q, cache, sequences, out, options); }), 1);
}

TEST(CallPath, AdditiveAttentionLowersItsMaskOnce) {
  const Inputs in(DType::f32);
  const Tensor w = random_tensor(DType::f32, {1, 4, 1, 8}, 6);
  Tensor out(DType::f32, in.q.shape()), lse(DType::f32, {2, 4, 9, 1});
  Tensor dq(DType::f32, in.q.shape()), dk(DType::f32, in.k.shape()), dw(DType::f32, w.shape()),
      dv(DType::f32, in.v.shape());
  const AdditiveAttentionOptions options{.mask = causal()};
  EXPECT_EQ(lowered_by([&] { additive_attention(in.q, in.k, w, in.v, out, options, lse.view()); }), 1);
  EXPECT_EQ(
      lowered_by([&] { additive_attention_backward(out, in.q, in.k, w, in.v, out, lse, {dq, dk, dw, dv}, options); }),
      1);
}

TEST(CallPath, LayersLowerTheirMaskOnce) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    TransformerBlockConfig config;
    config.attention = {.dtype = dtype, .width = 16, .heads = 2};
    TransformerBlock block(config);
    block.initialise(1);
    const Tensor x = random_tensor(dtype, {2, 1, 12, 16}, 7);
    AttentionOptions options;
    options.mask = window(4, 0);
    EXPECT_EQ(lowered_by([&] { block.forward(x, options); }), 1);
    EXPECT_EQ(lowered_by([&] { block.backward(x, x, options); }), 1);

    const MultiHeadAttention& layer = block.attention();
    MultiHeadAttentionSaved saved;
    EXPECT_EQ(lowered_by([&] { layer.forward(x, options, {.saved = &saved}); }), 1);
    EXPECT_EQ(lowered_by([&] { layer.backward(x, saved); }), 1);
    KvCache cache(layer.config(), 2, 12);
    EXPECT_EQ(lowered_by([&] { layer.step(x, cache, options); }), 1);
  }
}

// Cut into blocks of queries, a call has a mask of its own for each, and the whole one, which is checked before.
TEST(CallPath, BlocksOfQueriesLowerTheirOwnMasks) {
  TransformerBlockConfig config;
  config.attention = {.width = 16, .heads = 2};
  TransformerBlock block(config);
  block.initialise(1);
  const Tensor x = random_tensor(DType::f32, {2, 1, 12, 16}, 7);
  AttentionOptions options;
  options.mask = causal();
  EXPECT_EQ(lowered_by([&] { block.forward(x, options, {.block = 5}); }), 1 + 3);
}

}  // namespace
}  // namespace attend
