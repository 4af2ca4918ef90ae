// Tests of a layer whose inner attention is not softmax attention.
#include "attend/inner_attention.hpp"

#include "attend/multi_head_attention.hpp"
#include "unit/error_of.hpp"
#include "unit/op_testing.hpp"

namespace attend::test::ops {
namespace {

// Softmax attention with a learned scale, as an inner attention: a layer with it must do what a layer without does.
class ScaledAttention : public InnerAttention {
 public:
  explicit ScaledAttention(DType dtype, double scale) : scale_(dtype, {1, 1, 1, 1}) {
    store(scale_, 0, 0, 0, 0, scale);
  }
  const char* name() const override { return "scaled attention"; }
  std::vector<NamedTensor> parameters() override { return {{"scale", scale_}}; }

  void forward(View q, View k, View v, MutableView out, std::vector<Tensor>* saved) const override {
    AttentionExtras extras;
    if (saved != nullptr) {
      saved->push_back(Tensor(q.dtype, {q.batch(), q.heads(), q.length(), 1}));
      extras.lse = saved->back();
    }
    attention(q, k, v, out, options(), extras);
  }
  std::vector<Tensor> backward(View dout, View q, View k, View v, View out, const std::vector<Tensor>& saved,
                               MutableView dq, MutableView dk, MutableView dv) const override {
    attention_backward(dout, q, k, v, out, saved.at(0), {dq, dk, dv, {}, {}}, options());
    double sum = 0;  // d/dscale = sum of q . dq / scale
    for_each_element(q.shape,
                     [&](auto b, auto h, auto i, auto d) { sum += load(q, b, h, i, d) * load(dq, b, h, i, d); });
    std::vector<Tensor> gradients;
    gradients.push_back(Tensor(q.dtype, {1, 1, 1, 1}));
    store(gradients[0], 0, 0, 0, 0, sum / load(scale_, 0, 0, 0, 0));
    return gradients;
  }

 private:
  AttentionOptions options() const { return {.mask = causal(), .scale = load(scale_, 0, 0, 0, 0)}; }
  Tensor scale_;
};

MultiHeadAttentionConfig config_with(DType dtype, std::shared_ptr<InnerAttention> inner) {
  return {.dtype = dtype,
          .width = 24,
          .heads = 4,
          .kv_heads = 2,
          .qk_norm = true,
          .rope = RopeStyle::half_split,
          .inner = std::move(inner)};
}

TEST(InnerAttention, ALayerWithItDoesWhatALayerWithoutDoes) {
  MultiHeadAttention plain(config_with(DType::f32, nullptr));
  MultiHeadAttention layer(config_with(DType::f32, std::make_shared<ScaledAttention>(DType::f32, 0.5)));
  plain.initialise(3);
  layer.initialise(3);
  EXPECT_EQ(layer.parameter_count(), plain.parameter_count() + 1);
  const Tensor x = random_tensor(DType::f32, {2, 1, 9, 24}, 1), dy = random_tensor(DType::f32, {2, 1, 9, 24}, 2);
  MultiHeadAttentionSaved plain_saved, saved;
  const Tensor expected = plain.forward(x, {.mask = causal(), .scale = 0.5}, {.saved = &plain_saved});
  const Tensor y = layer.forward(x, {}, {.saved = &saved});
  EXPECT_TRUE(same_bits(y, expected)) << "y";
  const auto expected_gradients = plain.backward(dy, plain_saved);
  const auto gradients = layer.backward(dy, saved);
  EXPECT_TRUE(same_bits(gradients.dx, expected_gradients.dx)) << "dx";
  EXPECT_TRUE(same_bits(gradients.parameters.wq, expected_gradients.parameters.wq)) << "wq";
  EXPECT_TRUE(same_bits(gradients.parameters.wv, expected_gradients.parameters.wv)) << "wv";
}

TEST(InnerAttention, GradientOfItsParameterByCentralDifferences) {
  const auto inner = std::make_shared<ScaledAttention>(DType::f64, 0.7);
  MultiHeadAttention layer(config_with(DType::f64, inner));
  layer.initialise(4);
  Tensor x = random_tensor(DType::f64, {1, 1, 5, 24}, 1);
  const Tensor dy = random_tensor(DType::f64, {1, 1, 5, 24}, 2);
  MultiHeadAttentionSaved saved;
  layer.forward(x, {}, {.saved = &saved});
  const auto gradients = layer.backward(dy, saved);
  ASSERT_EQ(gradients.inner.size(), 1U);
  const auto loss = [&] { return dot(layer.forward(x), dy); };
  expect_gradient(gradients.dx, x, loss, "x");
  Tensor scale(DType::f64, {1, 1, 1, 1});
  const auto loss_at_scale = [&] {
    store(inner->parameters()[0].value, 0, 0, 0, 0, load(scale, 0, 0, 0, 0));
    return loss();
  };
  store(scale, 0, 0, 0, 0, 0.7);
  expect_gradient(gradients.inner[0], scale, loss_at_scale, "scale");
}

TEST(InnerAttention, OptionsWeightsAndStepsAreRefused) {
  MultiHeadAttention layer(config_with(DType::f32, std::make_shared<ScaledAttention>(DType::f32, 0.5)));
  const Tensor x = random_tensor(DType::f32, {1, 1, 3, 24}, 1);
  EXPECT_EQ(error_of([&] { layer.forward(x, {.mask = causal()}); }),
            "multi_head_attention: got score options or a mask beside the inner attention (scaled attention), expected "
            "none: what it sees is said when it is made");
  Tensor weights;
  EXPECT_EQ(error_of([&] { layer.forward(x, {}, {.weights = &weights}); }),
            "multi_head_attention: weights are wanted, but the inner attention (scaled attention) makes none");
  KvCache cache(layer.config(), 1, 4);
  EXPECT_EQ(error_of([&] { layer.step(x, cache); }),
            "multi_head_attention: step reads a cache of keys and values, which the inner attention (scaled attention) "
            "does not use");
}

}  // namespace
}  // namespace attend::test::ops
