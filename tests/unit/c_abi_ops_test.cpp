// Tests of the C ABI of softmax, RoPE, RMS norm and linear: the bits of the C++ calls, and bad arguments.
#include <gtest/gtest.h>

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

const Shape kShape{2, 3, 5, 8};

TEST(CAbiOps, Softmax) {
  Tensor x = drawn(1, kShape), dy = drawn(2, kShape), y(DType::f32, kShape), expected(DType::f32, kShape);
  const attend_tensor cx = seen(x), cdy = seen(dy), cy = seen(y);
  ASSERT_TRUE(is_ok(attend_softmax(&cx, &cy)));
  softmax(x, expected);
  EXPECT_TRUE(same_bits(y, expected));

  Tensor dx(DType::f32, kShape);
  const attend_tensor cdx = seen(dx);
  ASSERT_TRUE(is_ok(attend_softmax_backward(&cdy, &cy, &cdx)));
  softmax_backward(dy, y, expected);
  EXPECT_TRUE(same_bits(dx, expected));

  EXPECT_TRUE(is_refused(attend_softmax(nullptr, &cy), "x is null"));
  EXPECT_TRUE(is_refused(attend_softmax(&cx, nullptr), "y is null"));
  EXPECT_TRUE(is_refused(attend_softmax_backward(nullptr, &cy, &cdx), "dy is null"));
  EXPECT_TRUE(is_refused(attend_softmax_backward(&cdy, nullptr, &cdx), "y is null"));
  EXPECT_TRUE(is_refused(attend_softmax_backward(&cdy, &cy, nullptr), "dx is null"));
}

TEST(CAbiOps, Rope) {
  Tensor x = drawn(1, kShape), y(DType::f32, kShape), expected(DType::f32, kShape);
  const attend_tensor cx = seen(x), cy = seen(y);
  const std::vector<std::int64_t> positions{4, 3, 9, 0, 1};
  attend_rope_options c;
  attend_rope_options_init(&c);

  ASSERT_TRUE(is_ok(attend_rope(&cx, &cy, nullptr)));
  rope(x, expected);
  EXPECT_TRUE(same_bits(y, expected));
  ASSERT_TRUE(is_ok(attend_rope(&cx, &cy, &c)));
  EXPECT_TRUE(same_bits(y, expected));

  RopeOptions cpp{
      .style = RopeStyle::interleaved, .theta = 500.0, .rotary_dim = 6, .positions = {}, .first_position = 3};
  c.style = ATTEND_ROPE_INTERLEAVED, c.theta = 500.0, c.rotary_dim = 6, c.first_position = 3;
  ASSERT_TRUE(is_ok(attend_rope(&cx, &cy, &c)));
  rope(x, expected, cpp);
  EXPECT_TRUE(same_bits(y, expected));

  cpp.positions = positions;
  c.positions = positions.data(), c.position_count = 5;
  ASSERT_TRUE(is_ok(attend_rope_backward(&cx, &cy, &c)));
  rope_backward(x, expected, cpp);
  EXPECT_TRUE(same_bits(y, expected));

  c.position_count = 4;
  EXPECT_TRUE(is_refused(attend_rope(&cx, &cy, &c), "4"));
  c.positions = nullptr;
  EXPECT_TRUE(is_refused(attend_rope(&cx, &cy, &c), "positions is null"));
  attend_rope_options_init(&c);
  c.style = ATTEND_ROPE_NONE;
  EXPECT_TRUE(is_refused(attend_rope(&cx, &cy, &c), "ATTEND_ROPE_NONE"));
  c.style = 3;
  EXPECT_TRUE(is_refused(attend_rope_backward(&cx, &cy, &c), "style is 3"));
  c.struct_size = 1;
  EXPECT_TRUE(is_refused(attend_rope(&cx, &cy, &c), "attend_rope_options_init"));
  EXPECT_TRUE(is_refused(attend_rope(nullptr, &cy, nullptr), "x is null"));
  EXPECT_TRUE(is_refused(attend_rope(&cx, nullptr, nullptr), "y is null"));
  EXPECT_TRUE(is_refused(attend_rope_backward(nullptr, &cy, nullptr), "dy is null"));
  EXPECT_TRUE(is_refused(attend_rope_backward(&cx, nullptr, nullptr), "dx is null"));
}

TEST(CAbiOps, RmsNorm) {
  Tensor x = drawn(1, kShape), dy = drawn(2, kShape), weight = drawn(3, {1, 1, 1, 8});
  Tensor y(DType::f32, kShape), expected(DType::f32, kShape);
  const attend_tensor cx = seen(x), cdy = seen(dy), cw = seen(weight), cy = seen(y);
  ASSERT_TRUE(is_ok(attend_rms_norm(&cx, &cw, &cy, 0.5)));
  rms_norm(x, weight, expected, 0.5);
  EXPECT_TRUE(same_bits(y, expected));

  Tensor dx(DType::f32, kShape), dweight(DType::f32, weight.shape()), expected_dweight(DType::f32, weight.shape());
  const attend_tensor cdx = seen(dx), cdw = seen(dweight);
  ASSERT_TRUE(is_ok(attend_rms_norm_backward(&cdy, &cx, &cw, &cdx, &cdw, 0.5)));
  rms_norm_backward(dy, x, weight, expected, expected_dweight, 0.5);
  EXPECT_TRUE(same_bits(dx, expected));
  EXPECT_TRUE(same_bits(dweight, expected_dweight));

  EXPECT_TRUE(is_refused(attend_rms_norm(nullptr, &cw, &cy, 1e-6), "x is null"));
  EXPECT_TRUE(is_refused(attend_rms_norm(&cx, nullptr, &cy, 1e-6), "weight is null"));
  EXPECT_TRUE(is_refused(attend_rms_norm(&cx, &cw, nullptr, 1e-6), "y is null"));
  EXPECT_TRUE(is_refused(attend_rms_norm(&cx, &cw, &cy, -1), "eps"));
  EXPECT_TRUE(is_refused(attend_rms_norm_backward(nullptr, &cx, &cw, &cdx, &cdw, 1e-6), "dy is null"));
  EXPECT_TRUE(is_refused(attend_rms_norm_backward(&cdy, nullptr, &cw, &cdx, &cdw, 1e-6), "x is null"));
  EXPECT_TRUE(is_refused(attend_rms_norm_backward(&cdy, &cx, nullptr, &cdx, &cdw, 1e-6), "weight is null"));
  EXPECT_TRUE(is_refused(attend_rms_norm_backward(&cdy, &cx, &cw, nullptr, &cdw, 1e-6), "dx is null"));
  EXPECT_TRUE(is_refused(attend_rms_norm_backward(&cdy, &cx, &cw, &cdx, nullptr, 1e-6), "dweight is null"));
}

TEST(CAbiOps, Linear) {
  const Shape out_shape{2, 3, 5, 4};
  Tensor x = drawn(1, kShape), weight = drawn(2, {1, 1, 4, 8}), bias = drawn(3, {1, 1, 1, 4}), dy = drawn(4, out_shape);
  Tensor y(DType::f32, out_shape), expected(DType::f32, out_shape);
  const attend_tensor cx = seen(x), cw = seen(weight), cb = seen(bias), cdy = seen(dy), cy = seen(y);
  ASSERT_TRUE(is_ok(attend_linear(&cx, &cw, nullptr, &cy)));
  linear(x, weight, std::nullopt, expected);
  EXPECT_TRUE(same_bits(y, expected));
  ASSERT_TRUE(is_ok(attend_linear(&cx, &cw, &cb, &cy)));
  EXPECT_FALSE(same_bits(y, expected));
  linear(x, weight, bias, expected);
  EXPECT_TRUE(same_bits(y, expected));

  Tensor dx(DType::f32, kShape), dw(DType::f32, weight.shape()), db(DType::f32, bias.shape());
  Tensor edx(DType::f32, kShape), edw(DType::f32, weight.shape()), edb(DType::f32, bias.shape());
  const attend_tensor cdx = seen(dx), cdw = seen(dw), cdb = seen(db);
  linear_backward(dy, x, weight, {edx, edw, edb});
  ASSERT_TRUE(is_ok(attend_linear_backward(&cdy, &cx, &cw, nullptr, &cdw, nullptr)));
  EXPECT_TRUE(same_bits(dw, edw));
  EXPECT_FALSE(same_bits(dx, edx));
  ASSERT_TRUE(is_ok(attend_linear_backward(&cdy, &cx, &cw, &cdx, nullptr, &cdb)));
  EXPECT_TRUE(same_bits(dx, edx));
  EXPECT_TRUE(same_bits(db, edb));

  EXPECT_TRUE(is_refused(attend_linear(nullptr, &cw, nullptr, &cy), "x is null"));
  EXPECT_TRUE(is_refused(attend_linear(&cx, nullptr, nullptr, &cy), "weight is null"));
  EXPECT_TRUE(is_refused(attend_linear(&cx, &cw, nullptr, nullptr), "y is null"));
  EXPECT_TRUE(is_refused(attend_linear(&cx, &cw, &cw, &cy), "bias"));
  EXPECT_TRUE(is_refused(attend_linear_backward(nullptr, &cx, &cw, &cdx, nullptr, nullptr), "dy is null"));
  EXPECT_TRUE(is_refused(attend_linear_backward(&cdy, nullptr, &cw, &cdx, nullptr, nullptr), "x is null"));
  EXPECT_TRUE(is_refused(attend_linear_backward(&cdy, &cx, nullptr, &cdx, nullptr, nullptr), "weight is null"));
}

}  // namespace
}  // namespace attend
