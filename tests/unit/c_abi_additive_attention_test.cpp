// Tests of the C ABI of additive attention and of Luong's scores: the bits of the C++ calls, and bad arguments.
#include <gtest/gtest.h>

#include "attend/attend.hpp"
#include "attend/attend_variants.h"
#include "unit/c_abi_tensors.hpp"

namespace attend {
namespace {

using test::drawn;
using test::is_ok;
using test::is_refused;
using test::same_bits;
using test::seen;

const Shape kOut{2, 4, 5, 3}, kLse{2, 4, 5, 1};

TEST(CAbiAdditive, Attention) {
  Tensor a = drawn(1, {2, 4, 5, 6}), b = drawn(2, {2, 2, 7, 6}), w = drawn(3, {1, 4, 1, 6}), v = drawn(4, {2, 2, 7, 3});
  Tensor dout = drawn(5, kOut), out(DType::f32, kOut), lse(DType::f32, kLse);
  const auto like = [](const Tensor& t) { return Tensor(t.dtype(), t.shape()); };
  Tensor expected = like(out), expected_lse = like(lse), da = like(a), db = like(b), dw = like(w), dv = like(v);
  const AdditiveAttentionOptions cpp{.mask = causal(), .scale = 0.5};
  additive_attention(a, b, w, v, expected, cpp, expected_lse);
  additive_attention_backward(dout, a, b, w, v, expected, expected_lse, {da, db, dw, dv}, cpp);

  attend_mask* mask = nullptr;
  ASSERT_TRUE(is_ok(attend_mask_causal(ATTEND_LAST_KEY, &mask)));
  attend_additive_options options;
  attend_additive_options_init(&options);
  options.mask = mask, options.scale = 0.5;
  const attend_tensor ca = seen(a), cb = seen(b), cw = seen(w), cv = seen(v), cd = seen(dout), co = seen(out);
  const attend_tensor cl = seen(lse);
  ASSERT_TRUE(is_ok(attend_additive_attention(&ca, &cb, &cw, &cv, &co, &options, &cl)));
  EXPECT_TRUE(same_bits(out, expected));
  EXPECT_TRUE(same_bits(lse, expected_lse));

  Tensor da2 = like(a), db2 = like(b), dw2 = like(w), dv2 = like(v);
  const attend_tensor cda = seen(da2), cdb = seen(db2), cdw = seen(dw2), cdv = seen(dv2);
  attend_additive_gradients gradients;
  attend_additive_gradients_init(&gradients);
  gradients.da = &cda, gradients.db = &cdb, gradients.dw = &cdw, gradients.dv = &cdv;
  ASSERT_TRUE(is_ok(attend_additive_attention_backward(&cd, &ca, &cb, &cw, &cv, &co, &cl, &gradients, &options)));
  EXPECT_TRUE(same_bits(da2, da));
  EXPECT_TRUE(same_bits(db2, db));
  EXPECT_TRUE(same_bits(dw2, dw));
  EXPECT_TRUE(same_bits(dv2, dv));

  EXPECT_TRUE(is_refused(attend_additive_attention(nullptr, &cb, &cw, &cv, &co, &options, &cl), "a is null"));
  EXPECT_TRUE(is_refused(attend_additive_attention_backward(&cd, &ca, &cb, &cw, &cv, &co, &cl, nullptr, &options),
                         "gradients is null"));
  gradients.dw = nullptr;
  EXPECT_TRUE(is_refused(attend_additive_attention_backward(&cd, &ca, &cb, &cw, &cv, &co, &cl, &gradients, &options),
                         "dw is null"));
  options.struct_size = 3;
  EXPECT_TRUE(is_refused(attend_additive_attention(&ca, &cb, &cw, &cv, &co, &options, &cl), "struct_size is 3"));
  ASSERT_TRUE(is_ok(attend_additive_attention(&ca, &cb, &cw, &cv, &co, nullptr, nullptr)));
  additive_attention(a, b, w, v, expected);
  EXPECT_TRUE(same_bits(out, expected));
  attend_mask_free(mask);
}

TEST(CAbiAdditive, Alignments) {
  for (const Alignment score : {Alignment::dot, Alignment::general, Alignment::concat}) {
    const std::int64_t key_dim = score == Alignment::dot ? 6 : 4, hidden = score == Alignment::general ? 4 : 8;
    Tensor q = drawn(1, {2, 4, 5, 6}), k = drawn(2, {2, 2, 7, key_dim}), v = drawn(3, {2, 2, 7, 3});
    Tensor wq = drawn(4, {1, 1, hidden, 6}), wk = drawn(5, {1, 2, 8, 4}), w = drawn(6, {1, 4, 1, 8});
    Tensor dout = drawn(7, kOut), out(DType::f32, kOut), lse(DType::f32, kLse);
    const auto like = [](const Tensor& t) { return Tensor(t.dtype(), t.shape()); };
    Tensor expected = like(out), expected_lse = like(lse);
    Tensor want[] = {like(q), like(k), like(v), like(wq), like(wk), like(w)};
    Tensor got[] = {like(q), like(k), like(v), like(wq), like(wk), like(w)};
    const AlignmentWeights weights{wq.view(), wk.view(), w.view()};
    aligned_attention(score, q, k, v, weights, expected, {}, expected_lse);
    aligned_attention_backward(score, dout, q, k, v, weights, expected, expected_lse,
                               {want[0], want[1], want[2], want[3].view(), want[4].view(), want[5].view()});

    const attend_tensor cq = seen(q), ck = seen(k), cv = seen(v), cwq = seen(wq), cwk = seen(wk), cw = seen(w);
    const attend_tensor cd = seen(dout), co = seen(out), cl = seen(lse);
    attend_alignment alignment;
    attend_alignment_init(&alignment);
    alignment.score = static_cast<std::int32_t>(score);
    alignment.wq = &cwq, alignment.wk = &cwk, alignment.w = &cw;
    ASSERT_TRUE(is_ok(attend_aligned_attention(&alignment, &cq, &ck, &cv, &co, nullptr, &cl)));
    EXPECT_TRUE(same_bits(out, expected));
    EXPECT_TRUE(same_bits(lse, expected_lse));
    attend_tensor c[6];
    for (int n = 0; n < 6; ++n) c[n] = seen(got[n]);
    attend_alignment_gradients gradients;
    attend_alignment_gradients_init(&gradients);
    gradients.dq = &c[0], gradients.dk = &c[1], gradients.dv = &c[2];
    gradients.dwq = &c[3], gradients.dwk = &c[4], gradients.dw = &c[5];
    ASSERT_TRUE(
        is_ok(attend_aligned_attention_backward(&alignment, &cd, &cq, &ck, &cv, &co, &cl, &gradients, nullptr)));
    for (int n = 0; n < 6; ++n) EXPECT_TRUE(same_bits(got[n], want[n])) << n;

    alignment.score = 7;
    EXPECT_TRUE(is_refused(attend_aligned_attention(&alignment, &cq, &ck, &cv, &co, nullptr, &cl), "score is 7"));
    EXPECT_TRUE(is_refused(attend_aligned_attention(nullptr, &cq, &ck, &cv, &co, nullptr, &cl), "alignment is null"));
  }
}

}  // namespace
}  // namespace attend
