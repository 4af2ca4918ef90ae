// Tests of the C ABI of adaptive span: the bits of the C++ calls, and bad arguments.
#include "attend/adaptive_span.hpp"
#include "attend/attend_variants.h"

#include "unit/c_abi_tensors.hpp"

namespace attend {
namespace {

using test::drawn;
using test::is_ok;
using test::is_refused;
using test::same_bits;
using test::seen;

TEST(CAbiAdaptiveSpan, ForwardAndBackward) {
  Tensor q = drawn(1, {2, 4, 19, 8}), k = drawn(2, {2, 2, 25, 8}), v = drawn(3, {2, 2, 25, 6});
  Tensor span(DType::f32, {1, 4, 1, 1}), dout = drawn(6, {2, 4, 19, 6});
  for (std::int64_t h = 0; h < 4; ++h) span.data<float>()[h] = 2.5F * static_cast<float>(h);
  Tensor out(DType::f32, dout.shape()), lse(DType::f32, {2, 4, 19, 1}), expected(DType::f32, dout.shape());
  Tensor expected_lse(DType::f32, lse.shape());
  const attend_tensor cq = seen(q), ck = seen(k), cv = seen(v), cs = seen(span), cdout = seen(dout);
  const attend_tensor cout = seen(out), clse = seen(lse);
  ASSERT_TRUE(is_ok(attend_adaptive_span(&cq, &ck, &cv, &cs, &cout, nullptr, nullptr)));
  adaptive_span(q, k, v, span, expected);
  EXPECT_TRUE(same_bits(out, expected));

  attend_adaptive_span_options c;
  attend_adaptive_span_options_init(&c);
  ASSERT_TRUE(is_ok(attend_adaptive_span(&cq, &ck, &cv, &cs, &cout, &c, nullptr)));
  EXPECT_TRUE(same_bits(out, expected));
  const std::int64_t lengths[] = {25, 11}, offsets[] = {3, 0};
  attend_mask* mask = nullptr;
  ASSERT_TRUE(is_ok(attend_mask_padding(lengths, 2, &mask)));
  c.mask = mask, c.has_scale = 1, c.scale = 0.3, c.ramp = 4, c.max_span = 6, c.symmetric = 1;
  c.offsets = offsets, c.offset_count = 2;
  AdaptiveSpanOptions cpp;
  cpp.mask = padding({25, 11}), cpp.scale = 0.3, cpp.ramp = 4, cpp.max_span = 6, cpp.symmetric = true;
  cpp.diagonal = Diagonal::at({3, 0});
  ASSERT_TRUE(is_ok(attend_adaptive_span(&cq, &ck, &cv, &cs, &cout, &c, &clse)));
  adaptive_span(q, k, v, span, expected, cpp, expected_lse.view());
  EXPECT_TRUE(same_bits(out, expected));
  EXPECT_TRUE(same_bits(lse, expected_lse));

  const auto like = [](const Tensor& x) { return Tensor(DType::f32, x.shape()); };
  Tensor dq = like(q), dk = like(k), dv = like(v), ds = like(span);
  Tensor wq = like(q), wk = like(k), wv = like(v), ws = like(span);
  const attend_tensor cdq = seen(dq), cdk = seen(dk), cdv = seen(dv), cds = seen(ds);
  attend_adaptive_span_gradients g;
  attend_adaptive_span_gradients_init(&g);
  g.dq = &cdq, g.dk = &cdk, g.dv = &cdv, g.dspan = &cds;
  ASSERT_TRUE(is_ok(attend_adaptive_span_backward(&cdout, &cq, &ck, &cv, &cs, &cout, &clse, &g, &c)));
  adaptive_span_backward(dout, q, k, v, span, out, lse, {wq, wk, wv, ws}, cpp);
  EXPECT_TRUE(same_bits(dq, wq) && same_bits(dk, wk) && same_bits(dv, wv) && same_bits(ds, ws));

  double penalty = 0;
  ASSERT_TRUE(is_ok(attend_adaptive_span_penalty(&cs, 0.5, &c, &penalty, &cds)));
  EXPECT_EQ(penalty, adaptive_span_penalty(span, 0.5, cpp, ws.view()));
  EXPECT_TRUE(same_bits(ds, ws));

  EXPECT_TRUE(is_refused(attend_adaptive_span_penalty(&cs, 0.5, &c, nullptr, nullptr), "penalty is null"));
  EXPECT_TRUE(is_refused(attend_adaptive_span(&cq, &ck, &cv, nullptr, &cout, &c, nullptr), "span is null"));
  EXPECT_TRUE(is_refused(attend_adaptive_span_backward(&cdout, &cq, &ck, &cv, &cs, &cout, &clse, nullptr, &c),
                         "gradients is null"));
  g.dspan = nullptr;
  EXPECT_TRUE(
      is_refused(attend_adaptive_span_backward(&cdout, &cq, &ck, &cv, &cs, &cout, &clse, &g, &c), "dspan is null"));
  g.struct_size = 3;
  EXPECT_TRUE(is_refused(attend_adaptive_span_backward(&cdout, &cq, &ck, &cv, &cs, &cout, &clse, &g, &c),
                         "attend_adaptive_span_gradients_init"));
  c.ramp = 0;
  EXPECT_TRUE(is_refused(attend_adaptive_span(&cq, &ck, &cv, &cs, &cout, &c, nullptr), "ramp is 0"));
  c.align = 7;
  EXPECT_TRUE(is_refused(attend_adaptive_span(&cq, &ck, &cv, &cs, &cout, &c, nullptr), "align is 7"));
  c.struct_size = 3;
  EXPECT_TRUE(is_refused(attend_adaptive_span(&cq, &ck, &cv, &cs, &cout, &c, nullptr), "attend_adaptive_span_options"));
  attend_mask_free(mask);
  attend_adaptive_span_options_init(nullptr);
  attend_adaptive_span_gradients_init(nullptr);
}

}  // namespace
}  // namespace attend
