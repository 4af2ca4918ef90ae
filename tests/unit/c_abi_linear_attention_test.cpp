// Tests of the C ABI of linear attention: the bits of the C++ calls, and bad arguments.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

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

Tensor not_positive(Tensor x) {
  for (std::int64_t i = 0; i < x.size(); ++i) x.data<float>()[i] = -std::abs(x.data<float>()[i]);
  return x;
}

struct CAbiLinearAttention : testing::Test {
  Tensor q = drawn(1, {2, 4, 70, 8}), k = drawn(2, {2, 2, 70, 8}), v = drawn(3, {2, 2, 70, 6});
  Tensor dout = drawn(4, {2, 4, 70, 6}), out{DType::f32, {2, 4, 70, 6}}, expected{DType::f32, {2, 4, 70, 6}};
  Tensor log_decay = not_positive(drawn(5, {2, 2, 70, 1})), beta = drawn(6, {2, 2, 70, 1});
  attend_tensor cq = seen(q), ck = seen(k), cv = seen(v), cdout = seen(dout), cout = seen(out);
  attend_tensor clog = seen(log_decay), cbeta = seen(beta);
  attend_linear_attention_options c{};
  LinearAttentionOptions cpp;

  CAbiLinearAttention() { attend_linear_attention_options_init(&c); }
};

TEST_F(CAbiLinearAttention, DefaultsAndOptions) {
  ASSERT_TRUE(is_ok(attend_linear_attention(&cq, &ck, &cv, &cout, nullptr, nullptr)));
  linear_attention(q, k, v, expected);
  EXPECT_TRUE(same_bits(out, expected));
  ASSERT_TRUE(is_ok(attend_linear_attention(&cq, &ck, &cv, &cout, &c, nullptr)));
  EXPECT_TRUE(same_bits(out, expected));

  const std::vector<std::int64_t> lengths{70, 20};
  c.map.kind = ATTEND_FEATURES_RELU, c.causal = 0, c.scale = 0.5, c.eps = 0.25;
  c.lengths = lengths.data(), c.length_count = 2;
  cpp.map = FeatureMap::Kind::relu, cpp.causal = false, cpp.scale = 0.5, cpp.eps = 0.25, cpp.lengths = lengths;
  ASSERT_TRUE(is_ok(attend_linear_attention(&cq, &ck, &cv, &cout, &c, nullptr)));
  linear_attention(q, k, v, expected, cpp);
  EXPECT_TRUE(same_bits(out, expected));

  Tensor state = drawn(7, {2, 2, 8, 7}), dq(DType::f32, q.shape()), dk(DType::f32, k.shape());
  Tensor dv(DType::f32, v.shape()), wq(DType::f32, q.shape()), wk(DType::f32, k.shape()), wv(DType::f32, v.shape());
  const attend_tensor cstate = seen(state), cdq = seen(dq), cdk = seen(dk), cdv = seen(dv);
  attend_linear_attention_gradients g;
  attend_linear_attention_gradients_init(&g);
  g.dq = &cdq, g.dk = &cdk, g.dv = &cdv;
  ASSERT_TRUE(is_ok(attend_linear_attention_backward(&cdout, &cq, &ck, &cv, &g, &c, nullptr, &cstate)));
  linear_attention_backward(dout, q, k, v, {wq, wk, wv}, cpp, {}, state.view());
  EXPECT_TRUE(same_bits(dq, wq) && same_bits(dk, wk) && same_bits(dv, wv));
}

TEST_F(CAbiLinearAttention, DeltaRuleWithStatesAndGradients) {
  c.map.kind = ATTEND_FEATURES_IDENTITY, c.normalise = 0, c.log_decay = &clog, c.beta = &cbeta;
  cpp.map = FeatureMap::Kind::identity, cpp.normalise = false;
  cpp.log_decay = log_decay.view(), cpp.beta = beta.view();
  std::int64_t shape[4];
  ASSERT_TRUE(is_ok(attend_linear_state_shape(&cq, &ck, &cv, &c, shape)));
  const Shape state_shape = linear_state_shape(q, k, v, cpp);
  ASSERT_EQ((Shape{shape[0], shape[1], shape[2], shape[3]}), state_shape);
  Tensor initial = drawn(7, state_shape), last(DType::f32, state_shape), wanted_last(DType::f32, state_shape);
  const attend_tensor cinitial = seen(initial), clast = seen(last);
  c.initial_state = &cinitial, cpp.initial_state = initial.view();
  ASSERT_TRUE(is_ok(attend_linear_attention(&cq, &ck, &cv, &cout, &c, &clast)));
  linear_attention(q, k, v, expected, cpp, wanted_last.view());
  EXPECT_TRUE(same_bits(out, expected));
  EXPECT_TRUE(same_bits(last, wanted_last));

  std::vector<Tensor> got, wanted;
  for (const Shape& s : {q.shape(), k.shape(), v.shape(), log_decay.shape(), beta.shape(), state_shape}) {
    got.emplace_back(DType::f32, s);
    wanted.emplace_back(DType::f32, s);
  }
  std::vector<attend_tensor> views;
  for (Tensor& x : got) views.push_back(seen(x));
  attend_linear_attention_gradients g;
  attend_linear_attention_gradients_init(&g);
  g.dq = &views[0], g.dk = &views[1], g.dv = &views[2];
  g.dlog_decay = &views[3], g.dbeta = &views[4], g.dinitial_state = &views[5];
  ASSERT_TRUE(is_ok(attend_linear_attention_backward(&cdout, &cq, &ck, &cv, &g, &c, &clast, nullptr)));
  linear_attention_backward(dout, q, k, v,
                            {wanted[0], wanted[1], wanted[2], wanted[3].view(), wanted[4].view(), wanted[5].view()},
                            cpp, last.view());
  for (std::size_t n = 0; n < got.size(); ++n) EXPECT_TRUE(same_bits(got[n], wanted[n])) << n;

  c.initial_state = nullptr, cpp.initial_state.reset();
  ASSERT_TRUE(is_ok(attend_linear_attention_step(&cq, &ck, &cv, &cout, &clast, &c)));
  linear_attention_step(q, k, v, expected, wanted_last, cpp);
  EXPECT_TRUE(same_bits(out, expected));
  EXPECT_TRUE(same_bits(last, wanted_last));

  g.struct_size = 1;
  EXPECT_TRUE(is_refused(attend_linear_attention_backward(&cdout, &cq, &ck, &cv, &g, &c, nullptr, nullptr),
                         "attend_linear_attention_gradients_init"));
  EXPECT_TRUE(is_refused(attend_linear_attention_backward(&cdout, &cq, &ck, &cv, nullptr, &c, nullptr, nullptr),
                         "gradients is null"));
}

TEST_F(CAbiLinearAttention, AMapOfTheUsersOwn) {
  float factor = 2;
  c.map.kind = ATTEND_FEATURES_GIVEN, c.map.features = 3, c.map.context = &factor;
  c.map.value_f32 = [](void* context, const float* x, std::int64_t dim, float* y, std::int64_t features) {
    for (std::int64_t f = 0; f < features; ++f) y[f] = *static_cast<float*>(context) + x[f % dim] * x[f % dim];
  };
  c.map.gradient_f32 = [](void*, const float* x, const float* dy, std::int64_t features, float* dx, std::int64_t dim) {
    for (std::int64_t d = 0; d < dim; ++d) dx[d] = d < features ? 2 * x[d] * dy[d] : 0;
  };
  cpp.map = FeatureMap(
      [](auto x, auto y) {
        for (std::size_t f = 0; f < y.size(); ++f) y[f] = 2 + x[f % x.size()] * x[f % x.size()];
      },
      [](auto x, auto dy, auto dx) {
        for (std::size_t d = 0; d < dx.size(); ++d) dx[d] = d < dy.size() ? 2 * x[d] * dy[d] : 0;
      },
      3);
  ASSERT_TRUE(is_ok(attend_linear_attention(&cq, &ck, &cv, &cout, &c, nullptr)));
  linear_attention(q, k, v, expected, cpp);
  EXPECT_TRUE(same_bits(out, expected));
  Tensor dq(DType::f32, q.shape()), dk(DType::f32, k.shape()), dv(DType::f32, v.shape());
  Tensor wq(DType::f32, q.shape()), wk(DType::f32, k.shape()), wv(DType::f32, v.shape());
  const attend_tensor cdq = seen(dq), cdk = seen(dk), cdv = seen(dv);
  attend_linear_attention_gradients g;
  attend_linear_attention_gradients_init(&g);
  g.dq = &cdq, g.dk = &cdk, g.dv = &cdv;
  ASSERT_TRUE(is_ok(attend_linear_attention_backward(&cdout, &cq, &ck, &cv, &g, &c, nullptr, nullptr)));
  linear_attention_backward(dout, q, k, v, {wq, wk, wv}, cpp);
  EXPECT_TRUE(same_bits(dq, wq));
  EXPECT_TRUE(same_bits(dk, wk));

  c.map.gradient_f32 = nullptr;
  EXPECT_TRUE(is_refused(attend_linear_attention_backward(&cdout, &cq, &ck, &cv, &g, &c, nullptr, nullptr),
                         "no gradient function"));
  c.map.value_f32 = nullptr;
  EXPECT_TRUE(is_refused(attend_linear_attention(&cq, &ck, &cv, &cout, &c, nullptr), "no value function"));
}

TEST_F(CAbiLinearAttention, BadArguments) {
  EXPECT_TRUE(is_refused(attend_linear_attention(nullptr, &ck, &cv, &cout, nullptr, nullptr), "q is null"));
  EXPECT_TRUE(is_refused(attend_linear_attention(&cq, nullptr, &cv, &cout, nullptr, nullptr), "k is null"));
  EXPECT_TRUE(is_refused(attend_linear_attention(&cq, &ck, nullptr, &cout, nullptr, nullptr), "v is null"));
  EXPECT_TRUE(is_refused(attend_linear_attention(&cq, &ck, &cv, nullptr, nullptr, nullptr), "out is null"));
  EXPECT_TRUE(
      is_refused(attend_linear_state_shape(&cq, &ck, &cv, nullptr, nullptr), "the place for the result is null"));
  EXPECT_TRUE(is_refused(attend_linear_attention_step(&cq, &ck, &cv, &cout, nullptr, nullptr), "state is null"));
  c.length_count = 2;
  EXPECT_TRUE(is_refused(attend_linear_attention(&cq, &ck, &cv, &cout, &c, nullptr), "lengths is null"));
  c.length_count = 0, c.map.kind = 7;
  EXPECT_TRUE(is_refused(attend_linear_attention(&cq, &ck, &cv, &cout, &c, nullptr), "feature map is 7"));
  c.struct_size = 3;
  EXPECT_TRUE(
      is_refused(attend_linear_attention(&cq, &ck, &cv, &cout, &c, nullptr), "attend_linear_attention_options_init"));
}

}  // namespace
}  // namespace attend
