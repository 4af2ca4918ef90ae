// Tests of the C ABI of positions, RoPE's scaling and the bias by distance: the same bits as C++.
#include "attend/attention.hpp"
#include "attend/positions.hpp"
#include "attend/rope.hpp"
#include "unit/c_abi_tensors.hpp"

namespace attend::test {
namespace {

TEST(CAbiPositions, SameBitsAsCpp) {
  Tensor x = drawn(1, {2, 2, 5, 6}), table = drawn(2, {1, 1, 9, 6}), y(DType::f32, x.shape()),
         want(DType::f32, x.shape());
  Tensor dtable(DType::f32, table.shape()), dwant(DType::f32, table.shape());
  const attend_tensor c_x = seen(x), c_table = seen(table), c_y = seen(y), c_dtable = seen(dtable);
  ASSERT_TRUE(is_ok(attend_sinusoidal(&c_y, 500, nullptr, 0, 3)));
  sinusoidal(want, {.theta = 500, .first_position = 3});
  EXPECT_TRUE(same_bits(y, want));
  const int64_t positions[] = {5, 4, 3, 2, 1};
  ASSERT_TRUE(is_ok(attend_sinusoidal(&c_y, 500, positions, 5, 0)));
  sinusoidal(want, {.theta = 500, .positions = {5, 4, 3, 2, 1}});
  EXPECT_TRUE(same_bits(y, want));
  ASSERT_TRUE(is_ok(attend_add_positions(&c_x, &c_table, &c_y, 4)));
  add_positions(x, table, want, 4);
  EXPECT_TRUE(same_bits(y, want));
  ASSERT_TRUE(is_ok(attend_add_positions_backward(&c_x, &c_dtable, 4)));
  add_positions_backward(x, dwant, 4);
  EXPECT_TRUE(same_bits(dtable, dwant));
  EXPECT_TRUE(is_refused(attend_add_positions(&c_x, &c_table, &c_y, 5), "first_position is 5"));
  EXPECT_TRUE(is_refused(attend_sinusoidal(nullptr, 1, nullptr, 0, 0), "out is null"));

  Tensor slopes(DType::f32, {1, 6, 1, 1});
  const attend_tensor c_slopes = seen(slopes);
  ASSERT_TRUE(is_ok(attend_alibi_slopes(&c_slopes)));
  EXPECT_TRUE(same_bits(slopes, alibi_slopes(6)));
}

TEST(CAbiPositions, ScalingOfRope) {
  Tensor x = drawn(3, {1, 2, 4, 8}), y(DType::f32, x.shape()), want(DType::f32, x.shape());
  const attend_tensor c_x = seen(x), c_y = seen(y);
  attend_rope_scaling scaling;
  attend_rope_scaling_init(&scaling);
  attend_rope_options options;
  attend_rope_options_init(&options);
  options.first_position = 100;
  options.scaling = &scaling;
  const RopeScaling cpp[] = {
      {},
      {.kind = RopeScaling::Kind::linear, .factor = 3},
      {.kind = RopeScaling::Kind::llama3, .factor = 3, .original_length = 40, .low_frequency = 2, .high_frequency = 5},
      {.kind = RopeScaling::Kind::yarn,
       .factor = 3,
       .original_length = 40,
       .beta_fast = 8,
       .beta_slow = 2,
       .truncate = false,
       .attention_factor = 1.5}};
  for (const RopeScaling& s : cpp) {
    scaling.kind = static_cast<int32_t>(s.kind);
    scaling.factor = s.factor;
    scaling.original_length = s.original_length;
    scaling.low_frequency = s.low_frequency, scaling.high_frequency = s.high_frequency;
    scaling.beta_fast = s.beta_fast, scaling.beta_slow = s.beta_slow;
    scaling.truncate = s.truncate ? 1 : 0;
    scaling.has_attention_factor = s.attention_factor ? 1 : 0;
    scaling.attention_factor = s.attention_factor.value_or(0);
    ASSERT_TRUE(is_ok(attend_rope(&c_x, &c_y, &options)));
    rope(x, want, {.first_position = 100, .scaling = s});
    EXPECT_TRUE(same_bits(y, want));
  }
  scaling.kind = 9;
  EXPECT_TRUE(is_refused(attend_rope(&c_x, &c_y, &options), "scaling is 9"));
}

TEST(CAbiPositions, T5AndTheBiasByDistance) {
  const T5Buckets cpp{.bidirectional = false, .count = 8, .max_distance = 20};
  attend_t5_buckets buckets;
  attend_t5_buckets_init(&buckets);
  buckets.bidirectional = 0, buckets.count = 8, buckets.max_distance = 20;
  int64_t bucket = 0;
  ASSERT_TRUE(is_ok(attend_t5_bucket(-9, &buckets, &bucket)));
  EXPECT_EQ(bucket, t5_bucket(-9, cpp));
  Tensor table = drawn(4, {1, 1, 8, 2}), values(DType::f32, {1, 2, 1, 11}), want(DType::f32, values.shape());
  const attend_tensor c_table = seen(table), c_values = seen(values);
  ASSERT_TRUE(is_ok(attend_t5_bias(&c_table, &c_values, -5, &buckets)));
  t5_bias(table, want, -5, cpp);
  EXPECT_TRUE(same_bits(values, want));

  Tensor q = drawn(5, {1, 2, 6, 4}), out(DType::f32, q.shape()), lse(DType::f32, {1, 2, 6, 1});
  Tensor dq(DType::f32, q.shape()), dk(DType::f32, q.shape()), dv(DType::f32, q.shape()),
      dvalues(DType::f32, want.shape());
  const attend_tensor c_q = seen(q), c_out = seen(out), c_lse = seen(lse), c_dq = seen(dq), c_dk = seen(dk),
                      c_dv = seen(dv), c_dvalues = seen(dvalues);
  attend_attention_options options;
  attend_attention_options_init(&options);
  options.distance_bias = &c_values;
  ASSERT_TRUE(is_ok(attend_attention(&c_q, &c_q, &c_q, &c_out, &options, &c_lse, nullptr)));
  const AttentionOptions rules{.distance_bias = values};
  const AttentionResult y = attention(q, q, q, rules, {.lse = true});
  EXPECT_TRUE(same_bits(out, y.out));
  attend_attention_gradients gradients;
  attend_attention_gradients_init(&gradients);
  gradients.dq = &c_dq, gradients.dk = &c_dk, gradients.dv = &c_dv, gradients.ddistance_bias = &c_dvalues;
  ASSERT_TRUE(is_ok(attend_attention_backward(&c_q, &c_q, &c_q, &c_q, &c_out, &c_lse, &gradients, &options)));
  EXPECT_TRUE(same_bits(dvalues, attention_backward(q, q, q, q, y.out, y.lse, rules).ddistance_bias));

  Tensor dtable(DType::f32, table.shape()), dwant(DType::f32, table.shape());
  const attend_tensor c_dtable = seen(dtable);
  ASSERT_TRUE(is_ok(attend_t5_bias_backward(&c_dvalues, &c_dtable, -5, &buckets)));
  t5_bias_backward(dvalues, dwant, -5, cpp);
  EXPECT_TRUE(same_bits(dtable, dwant));
  EXPECT_TRUE(is_refused(attend_t5_bias(&c_table, &c_values, -5, nullptr), "expected [1, 1, 32, 2]"));
}

}  // namespace
}  // namespace attend::test
