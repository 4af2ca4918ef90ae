// Results of half types asked for in f32: the sums of which the usual result is the rounding.
#include "attend/attention.hpp"
#include "attend/linear.hpp"
#include "unit/error_of.hpp"
#include "unit/op_testing.hpp"

namespace attend::test::ops {
namespace {

constexpr DType kHalves[] = {DType::f16, DType::bf16};

TEST(WideResults, AttentionRoundsToTheUsualOutput) {
  for (const DType dtype : kHalves) {
    const Tensor q = random_tensor(dtype, {2, 4, 70, 40}, 1), k = random_tensor(dtype, {2, 2, 90, 40}, 2),
                 v = random_tensor(dtype, {2, 2, 90, 33}, 3), dout = random_tensor(dtype, {2, 4, 70, 33}, 4);
    const AttentionOptions options{.mask = causal()};
    const AttentionResult usual = attention(q, k, v, options, {.lse = true});
    Tensor wide(DType::f32, usual.out.shape());
    attention(q, k, v, wide, options);
    EXPECT_TRUE(same_bits(to_dtype(wide, dtype), usual.out)) << name(dtype);
    EXPECT_FALSE(same_bits(to_dtype(usual.out, DType::f32), wide)) << name(dtype);

    const AttentionGradientTensors g = attention_backward(dout, q, k, v, usual.out, usual.lse, options);
    Tensor dq(DType::f32, q.shape()), dk(DType::f32, k.shape()), dv(DType::f32, v.shape());
    attention_backward(dout, q, k, v, usual.out, usual.lse, {dq, dk, dv, {}, {}}, options);
    EXPECT_TRUE(same_bits(to_dtype(dq, dtype), g.dq)) << name(dtype);
    EXPECT_TRUE(same_bits(to_dtype(dk, dtype), g.dk)) << name(dtype);
    EXPECT_TRUE(same_bits(to_dtype(dv, dtype), g.dv)) << name(dtype);
  }
}

TEST(WideResults, LinearRoundsToTheUsualWeightGradient) {
  for (const DType dtype : kHalves) {
    const Tensor x = random_tensor(dtype, {1, 1, 50, 24}, 5), weight = random_tensor(dtype, {1, 1, 17, 24}, 6),
                 dy = random_tensor(dtype, {1, 1, 50, 17}, 7);
    Tensor usual(dtype, weight.shape()), wide(DType::f32, weight.shape());
    linear_backward(dy, x, weight, {.dweight = usual});
    linear_backward(dy, x, weight, {.dweight = wide});
    EXPECT_TRUE(same_bits(to_dtype(wide, dtype), usual)) << name(dtype);
  }
}

TEST(WideResults, OtherDtypesAreRefused) {
  const Tensor q(DType::bf16, {1, 1, 4, 8}), single(DType::f32, {1, 1, 4, 8});
  Tensor f16(DType::f16, q.shape()), f64(DType::f64, q.shape());
  EXPECT_EQ(error_of([&] { attention(q, q, q, f16); }), "attention: out dtype is f16, expected bf16 or f32");
  EXPECT_EQ(error_of([&] { attention(q, q, q, f64); }), "attention: out dtype is f64, expected bf16 or f32");
  EXPECT_EQ(error_of([&] { attention(single, single, single, f64); }), "attention: out dtype is f64, expected f32");
}

}  // namespace
}  // namespace attend::test::ops
