// Tests of the C ABI of Linformer: the bits of the C++ calls, and bad arguments.
#include "attend/attend_variants.h"
#include "attend/linformer.hpp"

#include "unit/c_abi_tensors.hpp"

namespace attend {
namespace {

using test::drawn;
using test::is_ok;
using test::is_refused;
using test::same_bits;
using test::seen;

TEST(CAbiLinformer, ForwardAndBackward) {
  Tensor q = drawn(1, {2, 4, 9, 8}), k = drawn(2, {2, 2, 15, 8}), v = drawn(3, {2, 2, 15, 6});
  Tensor e = drawn(4, {1, 2, 5, 20}), f = drawn(5, {1, 2, 5, 20}), dout = drawn(6, {2, 4, 9, 6});
  Tensor out(DType::f32, dout.shape()), lse(DType::f32, {2, 4, 9, 1}), expected(DType::f32, dout.shape());
  Tensor expected_lse(DType::f32, lse.shape());
  const attend_tensor cq = seen(q), ck = seen(k), cv = seen(v), ce = seen(e), cf = seen(f), cdout = seen(dout);
  const attend_tensor cout = seen(out), clse = seen(lse);
  Tensor keys(DType::f32, {2, 2, 5, 8}), values(DType::f32, {2, 2, 5, 6});
  Tensor expected_keys(DType::f32, keys.shape()), expected_values(DType::f32, values.shape());
  const attend_tensor ckeys = seen(keys), cvalues = seen(values);
  attend_linformer_options c;
  attend_linformer_options_init(&c);
  LinformerOptions cpp;
  ASSERT_TRUE(is_ok(attend_linformer(&cq, &ck, &cv, &ce, nullptr, &cout, nullptr, nullptr, nullptr, nullptr)));
  linformer(q, k, v, e, std::nullopt, expected);
  EXPECT_TRUE(same_bits(out, expected));

  const std::int64_t lengths[] = {15, 7};
  attend_mask* mask = nullptr;
  ASSERT_TRUE(is_ok(attend_mask_padding(lengths, 2, &mask)));
  c.mask = mask, c.has_scale = 1, c.scale = 0.3;
  cpp.mask = padding({15, 7}), cpp.scale = 0.3;
  ASSERT_TRUE(is_ok(attend_linformer(&cq, &ck, &cv, &ce, &cf, &cout, &c, &clse, &ckeys, &cvalues)));
  linformer(q, k, v, e, f.view(), expected, cpp, {expected_lse.view(), expected_keys.view(), expected_values.view()});
  EXPECT_TRUE(same_bits(out, expected));
  EXPECT_TRUE(same_bits(lse, expected_lse));
  EXPECT_TRUE(same_bits(keys, expected_keys) && same_bits(values, expected_values));

  const auto like = [](const Tensor& x) { return Tensor(DType::f32, x.shape()); };
  Tensor dq = like(q), dk = like(k), dv = like(v), de = like(e), df = like(f);
  Tensor wq = like(q), wk = like(k), wv = like(v), we = like(e), wf = like(f);
  const attend_tensor cdq = seen(dq), cdk = seen(dk), cdv = seen(dv), cde = seen(de), cdf = seen(df);
  attend_linformer_gradients g;
  attend_linformer_gradients_init(&g);
  g.dq = &cdq, g.dk = &cdk, g.dv = &cdv, g.de = &cde, g.df = &cdf;
  ASSERT_TRUE(
      is_ok(attend_linformer_backward(&cdout, &cq, &ck, &cv, &ce, &cf, &cout, &clse, &ckeys, &cvalues, &g, &c)));
  linformer_backward(dout, q, k, v, e, f.view(), out, lse, {wq, wk, wv, we, wf.view()}, cpp);
  EXPECT_TRUE(same_bits(dq, wq) && same_bits(dk, wk) && same_bits(dv, wv) && same_bits(de, we) && same_bits(df, wf));

  EXPECT_TRUE(
      is_refused(attend_linformer(nullptr, &ck, &cv, &ce, &cf, &cout, &c, nullptr, nullptr, nullptr), "q is null"));
  EXPECT_TRUE(
      is_refused(attend_linformer(&cq, &ck, &cv, nullptr, &cf, &cout, &c, nullptr, nullptr, nullptr), "e is null"));
  EXPECT_TRUE(is_refused(
      attend_linformer_backward(&cdout, &cq, &ck, &cv, &ce, &cf, &cout, &clse, nullptr, nullptr, nullptr, &c),
      "gradients is null"));
  g.df = nullptr;
  EXPECT_TRUE(
      is_refused(attend_linformer_backward(&cdout, &cq, &ck, &cv, &ce, &cf, &cout, &clse, &ckeys, &cvalues, &g, &c),
                 "df is missing"));
  g.struct_size = 3;
  EXPECT_TRUE(
      is_refused(attend_linformer_backward(&cdout, &cq, &ck, &cv, &ce, &cf, &cout, &clse, &ckeys, &cvalues, &g, &c),
                 "attend_linformer_gradients_init"));
  attend_mask_free(mask);
  ASSERT_TRUE(is_ok(attend_mask_causal(ATTEND_LAST_KEY, &mask)));
  c.mask = mask;
  EXPECT_TRUE(is_refused(attend_linformer(&cq, &ck, &cv, &ce, &cf, &cout, &c, nullptr, nullptr, nullptr),
                         "mixes all positions"));
  c.struct_size = 3;
  EXPECT_TRUE(is_refused(attend_linformer(&cq, &ck, &cv, &ce, &cf, &cout, &c, nullptr, nullptr, nullptr),
                         "attend_linformer_options"));
  attend_mask_free(mask);
  attend_linformer_options_init(nullptr);
  attend_linformer_gradients_init(nullptr);
}

}  // namespace
}  // namespace attend
