// Tests of the layer's gradients: central differences in f64, and the reference in every dtype.
#include "reference/multi_head_attention.hpp"
#include "unit/error_of.hpp"
#include "unit/layer_cases.hpp"

namespace attend::test::ops {
namespace {

class LayerGradient : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Cases, LayerGradient, testing::Range(0, kLayerCases));

TEST_P(LayerGradient, ByCentralDifferences) {
  const LayerCase c = layer_case(GetParam());
  LayerProblem p(c, DType::f64);
  MultiHeadAttentionSaved saved;
  const auto loss = [&] { return dot(p.forward(), p.dout); };
  p.forward({.saved = &saved});
  const MultiHeadAttentionGradients g = p.layer.backward(p.dout, saved);

  expect_gradient(g.dx, p.x, loss, "x");
  if (p.cross) expect_gradient(g.dcontext, p.context, loss, "context");
  if (p.options.bias) expect_gradient(g.dbias, p.bias, loss, "bias");
  if (p.options.distance_bias) expect_gradient(g.ddistance_bias, p.by_distance, loss, "distance_bias");
  if (p.options.sinks) expect_gradient(g.dsinks, p.sinks, loss, "sinks");
  for (const auto& [name, member] : kParameters) {
    Tensor& parameter = p.layer.parameters().*member;
    const Tensor& gradient = g.parameters.*member;
    EXPECT_EQ(parameter.empty(), gradient.empty()) << name;
    if (!parameter.empty()) expect_gradient(gradient, parameter, loss, name);
  }
}

// A mask may leave a query one key, and the gradient of its scores is then the difference of equal terms. Their size is
// taken from the same layer without the mask. A bias of the keys moves all scores of a query alike, so without RoPE and
// norm its gradient is such a difference too: it is measured by that of the keys' weights.
TEST_P(LayerGradient, MatchesTheReference) {
  constexpr double kRoundings = 48;
  const LayerCase c = layer_case(GetParam());
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64}) {
    const LayerProblem p(c, dtype);
    MultiHeadAttentionSaved saved;
    const Tensor y = p.forward({.saved = &saved});
    const MultiHeadAttentionGradients got = p.layer.backward(p.dout, saved);
    const auto reference_backward = [&](const AttentionOptions& options) {
      return reference::multi_head_attention_backward(p.layer.config(), p.layer.parameters(), p.dout, p.x,
                                                      p.context_view(), options);
    };
    AttentionOptions open = p.options;
    open.mask = no_mask();
    const MultiHeadAttentionGradients expected = reference_backward(p.options), unmasked = reference_backward(open);
    const auto check = [&](const Tensor& result, const Tensor& truth, double size, const std::string& what) {
      const double allowed = kRoundings * rounding(dtype, size);
      expect_within(result, truth, [&](auto, auto, auto, auto) { return allowed; }, what + " in " + name(dtype));
    };
    const Tensor truth =
        reference::multi_head_attention(p.layer.config(), p.layer.parameters(), p.x, p.context_view(), p.options);
    check(y, truth, max_abs(truth), "output");

    const auto got_list = all_gradients(got), expected_list = all_gradients(expected), sizes = all_gradients(unmasked);
    for (std::size_t n = 0; n < got_list.size(); ++n) {
      const auto& [what, gradient] = got_list[n];
      const Tensor& expected_gradient = *expected_list[n].second;
      ASSERT_EQ(gradient->empty(), expected_gradient.empty()) << what;
      if (gradient->empty()) continue;
      const bool of_scores = what == "bias" || what == "sinks" || what == "distance_bias";
      const DType wide = dtype == DType::f64 ? DType::f64 : DType::f32;
      EXPECT_EQ(gradient->dtype(), of_scores ? wide : dtype) << what;
      double size = std::fmax(max_abs(expected_gradient), max_abs(*sizes[n].second));
      if (what == "bk") size = std::fmax(size, max_abs(unmasked.parameters.wk));
      check(*gradient, expected_gradient, size, "gradient of " + what);
    }
  }
}

TEST(LayerBackward, BitsDoNotDependOnTheThreads) {
  MultiHeadAttention layer(
      {.width = 64, .heads = 8, .kv_heads = 2, .qkv_bias = true, .qk_norm = true, .rope = RopeStyle::half_split});
  layer.initialise(1);
  const Tensor x = random_tensor(DType::f32, {2, 1, 200, 64}, 2), dout = random_tensor(DType::f32, {2, 1, 200, 64}, 3);
  const auto run = [&] {
    MultiHeadAttentionSaved saved;
    layer.forward(x, {.mask = causal()}, {.saved = &saved});
    return layer.backward(dout, saved);
  };
  const int before = threads();
  set_threads(1);
  const MultiHeadAttentionGradients first = run();
  for (const int count : {2, 3, 7}) {
    set_threads(count);
    const MultiHeadAttentionGradients again = run();
    const auto got = all_gradients(again), expected = all_gradients(first);
    for (std::size_t n = 0; n < got.size(); ++n) {
      EXPECT_TRUE(expected[n].second->empty() || same_bits(*got[n].second, *expected[n].second))
          << got[n].first << " with " << count << " threads";
    }
  }
  set_threads(before);
}

TEST(LayerBackward, RefusesWhatForwardDidNotSave) {
  MultiHeadAttention layer({.width = 8, .heads = 2, .qk_norm = true});
  const Tensor x = random_tensor(DType::f32, {1, 1, 3, 8}, 4);
  MultiHeadAttentionSaved saved;
  EXPECT_NE(error_of([&] { layer.backward(x, saved); }).find("multi_head_attention: saved x shape is"),
            std::string::npos);
  layer.forward(x, {}, {.saved = &saved});
  const Tensor longer(DType::f32, {1, 1, 4, 8}), half(DType::f16, {1, 1, 3, 8});
  EXPECT_EQ(error_of([&] { layer.backward(longer, saved); }),
            "multi_head_attention: dout shape is [1, 1, 4, 8], expected [1, 1, 3, 8]");
  EXPECT_EQ(error_of([&] { layer.backward(half, saved); }), "multi_head_attention: dout dtype is f16, expected f32");
  MultiHeadAttention other({.width = 8, .heads = 4, .qk_norm = true});
  EXPECT_EQ(error_of([&] { other.backward(x, saved); }),
            "multi_head_attention: saved lse shape is [1, 2, 3, 1], expected [1, 4, 3, 1]");
  saved.q_raw = Tensor();
  EXPECT_EQ(error_of([&] { layer.backward(x, saved); }),
            "multi_head_attention: saved q_raw shape is [0, 0, 0, 0], expected [1, 1, 3, 8]");
}

}  // namespace
}  // namespace attend::test::ops
