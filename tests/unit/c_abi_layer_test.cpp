// Tests of the C ABI of the layer: the bits of the C++ layer, any strides out, and bad arguments.
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <memory>
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

constexpr std::int64_t B = 2, M = 6, kWidth = 12;

// A layer with every part there is, in C and in C++.
class CAbiLayer : public testing::Test {
 protected:
  void SetUp() override {
    attend_layer_config_init(&c_config);
    c_config.width = kWidth;
    c_config.output_width = 10;
    c_config.heads = 4;
    c_config.kv_heads = 2;
    c_config.head_dim = 4;
    c_config.value_dim = 3;
    c_config.value_rank = 5;
    c_config.qkv_bias = c_config.output_bias = c_config.qk_norm = 1;
    c_config.norm_eps = 1e-3;
    c_config.rope_style = ATTEND_ROPE_INTERLEAVED;
    c_config.rope_theta = 1000.0;
    ASSERT_TRUE(is_ok(attend_layer_create(&c_config, &layer)));
    ASSERT_TRUE(is_ok(attend_layer_initialise(layer, 42)));
    twin.initialise(42);
  }

  void TearDown() override { attend_layer_free(layer); }

  attend_layer_config c_config;
  attend_layer* layer = nullptr;
  MultiHeadAttention twin{{.width = kWidth,
                           .output_width = 10,
                           .heads = 4,
                           .kv_heads = 2,
                           .head_dim = 4,
                           .value_dim = 3,
                           .value_rank = 5,
                           .qkv_bias = true,
                           .output_bias = true,
                           .qk_norm = true,
                           .norm_eps = 1e-3,
                           .rope = RopeStyle::interleaved,
                           .rope_theta = 1000.0}};
  Tensor x = drawn(1, {B, 1, M, kWidth}), out{DType::f32, {B, 1, M, 10}}, weights{DType::f32, {B, 4, M, M}};
  attend_tensor c_x = seen(x), c_out = seen(out), c_weights = seen(weights);
};

TEST_F(CAbiLayer, ParametersByName) {
  const MultiHeadAttentionParameters& p = twin.parameters();
  const std::vector<std::pair<const char*, const Tensor*>> parameters{
      {"wq", &p.wq}, {"wk", &p.wk}, {"wv", &p.wv}, {"wv_down", &p.wv_down}, {"wo", &p.wo},        {"bq", &p.bq},
      {"bk", &p.bk}, {"bv", &p.bv}, {"bo", &p.bo}, {"q_norm", &p.q_norm},   {"k_norm", &p.k_norm}};
  std::int64_t elements = 0, count = 0;
  for (const auto& [name, tensor] : parameters) {
    attend_tensor parameter;
    ASSERT_TRUE(is_ok(attend_layer_parameter(layer, name, &parameter))) << name;
    EXPECT_TRUE(same_bits(parameter, *tensor)) << name;
    elements += tensor->size();
  }
  ASSERT_TRUE(is_ok(attend_layer_parameter_count(layer, &count)));
  EXPECT_EQ(count, elements);

  // The view is of the layer's own memory: what is written there counts.
  attend_tensor bo;
  ASSERT_TRUE(is_ok(attend_layer_parameter(layer, "bo", &bo)));
  static_cast<float*>(bo.data)[3] = 5.0F;
  twin.parameters().bo.data<float>()[3] = 5.0F;
  ASSERT_TRUE(is_ok(attend_layer_forward(layer, &c_x, nullptr, nullptr, &c_out, nullptr, nullptr)));
  EXPECT_TRUE(same_bits(out, twin.forward(x)));
}

TEST_F(CAbiLayer, ForwardAndBackward) {
  attend_mask* mask = nullptr;
  ASSERT_TRUE(is_ok(attend_mask_causal(ATTEND_LAST_KEY, &mask)));
  Tensor bias = drawn(5, {1, 4, M, M}), sinks = drawn(6, {1, 4, 1, 1}), dout = drawn(7, {B, 1, M, 10});
  const attend_tensor c_bias = seen(bias), c_sinks = seen(sinks), c_dout = seen(dout);
  attend_attention_options options;
  attend_attention_options_init(&options);
  options.mask = mask;
  options.bias = &c_bias;
  options.sinks = &c_sinks;
  attend_layer_saved* saved = nullptr;
  ASSERT_TRUE(is_ok(attend_layer_forward(layer, &c_x, nullptr, &options, &c_out, &c_weights, &saved)));
  attend_mask_free(mask);  // what was saved has its own copy

  MultiHeadAttentionSaved expected_saved;
  Tensor expected_weights;
  const Tensor expected = twin.forward(x, {.mask = causal(), .bias = bias, .sinks = sinks},
                                       {.saved = &expected_saved, .weights = &expected_weights});
  EXPECT_TRUE(same_bits(out, expected));
  EXPECT_TRUE(same_bits(weights, expected_weights));

  attend_layer_gradients* gradients = nullptr;
  ASSERT_TRUE(is_ok(attend_layer_backward(layer, &c_dout, saved, &gradients)));
  const MultiHeadAttentionGradients g = twin.backward(dout, expected_saved);
  const std::vector<std::pair<const char*, const Tensor*>> all{{"dx", &g.dx},
                                                               {"dbias", &g.dbias},
                                                               {"dsinks", &g.dsinks},
                                                               {"wq", &g.parameters.wq},
                                                               {"wk", &g.parameters.wk},
                                                               {"wv", &g.parameters.wv},
                                                               {"wv_down", &g.parameters.wv_down},
                                                               {"wo", &g.parameters.wo},
                                                               {"bq", &g.parameters.bq},
                                                               {"bk", &g.parameters.bk},
                                                               {"bv", &g.parameters.bv},
                                                               {"bo", &g.parameters.bo},
                                                               {"q_norm", &g.parameters.q_norm},
                                                               {"k_norm", &g.parameters.k_norm}};
  attend_tensor gradient;
  for (const auto& [name, tensor] : all) {
    ASSERT_TRUE(is_ok(attend_layer_gradient(gradients, name, &gradient))) << name;
    EXPECT_TRUE(same_bits(gradient, *tensor)) << name;
  }
  EXPECT_TRUE(is_refused(attend_layer_gradient(gradients, "dcontext", &gradient), "does not have"));
  EXPECT_TRUE(is_refused(attend_layer_gradient(gradients, "dy", &gradient), "\"dy\""));
  EXPECT_TRUE(is_refused(attend_layer_gradient(gradients, nullptr, &gradient), "name is null"));
  EXPECT_TRUE(is_refused(attend_layer_gradient(gradients, "dx", nullptr), "gradient is null"));
  EXPECT_TRUE(is_refused(attend_layer_gradient(nullptr, "dx", &gradient), "gradients is null"));

  attend_layer_gradients* none = gradients;
  EXPECT_TRUE(is_refused(attend_layer_backward(layer, nullptr, saved, &none), "dout is null"));
  EXPECT_EQ(none, nullptr);
  EXPECT_TRUE(is_refused(attend_layer_backward(nullptr, &c_dout, saved, &none), "layer is null"));
  EXPECT_TRUE(is_refused(attend_layer_backward(layer, &c_dout, nullptr, &none), "saved is null"));
  EXPECT_TRUE(is_refused(attend_layer_backward(layer, &c_dout, saved, nullptr), "null"));
  EXPECT_TRUE(is_refused(attend_layer_backward(layer, &c_x, saved, &none), "dout"));
  attend_layer_gradients_free(gradients);
  attend_layer_saved_free(saved);
}

TEST_F(CAbiLayer, CrossAttentionIntoAnyStrides) {
  Tensor context = drawn(3, {B, 1, 9, kWidth});
  const attend_tensor c_context = seen(context);
  const Tensor expected = twin.forward(x, context);
  // Rows backwards and columns two apart: every layout a view can say.
  std::vector<float> memory(static_cast<std::size_t>(B * M * 20), -1.0F);
  attend_tensor strided = c_out;
  strided.strides[0] = M * 20, strided.strides[1] = 1, strided.strides[2] = -20, strided.strides[3] = 2;
  strided.data = memory.data() + (M - 1) * 20;
  attend_layer_saved* saved = nullptr;
  ASSERT_TRUE(is_ok(attend_layer_forward(layer, &c_x, &c_context, nullptr, &strided, nullptr, &saved)));
  for (std::int64_t b = 0; b < B; ++b) {
    for (std::int64_t i = 0; i < M; ++i) {
      for (std::int64_t d = 0; d < 10; ++d) {
        const std::int64_t place = (b * M + M - 1 - i) * 20 + 2 * d;
        EXPECT_EQ(memory[static_cast<std::size_t>(place)], expected.data<float>()[(b * M + i) * 10 + d]);
        EXPECT_EQ(memory[static_cast<std::size_t>(place + 1)], -1.0F);
      }
    }
  }
  Tensor dout = drawn(7, {B, 1, M, 10});
  const attend_tensor c_dout = seen(dout);
  attend_layer_gradients* gradients = nullptr;
  ASSERT_TRUE(is_ok(attend_layer_backward(layer, &c_dout, saved, &gradients)));
  MultiHeadAttentionSaved twin_saved;
  static_cast<void>(twin.forward(x, context, {}, {.saved = &twin_saved}));
  attend_tensor dcontext;
  ASSERT_TRUE(is_ok(attend_layer_gradient(gradients, "dcontext", &dcontext)));
  EXPECT_TRUE(same_bits(dcontext, twin.backward(dout, twin_saved).dcontext));
  attend_layer_gradients_free(gradients);
  attend_layer_saved_free(saved);
}

TEST_F(CAbiLayer, StepByStep) {
  attend_kv_cache* cache = nullptr;
  ASSERT_TRUE(is_ok(attend_kv_cache_create(layer, B, 8, &cache)));
  KvCache twin_cache(twin.config(), B, 8);
  std::int64_t length = -1;
  Tensor token = drawn(9, {B, 1, 1, kWidth}), token_out(DType::f32, {B, 1, 1, 10});
  const attend_tensor c_token = seen(token), c_token_out = seen(token_out);

  ASSERT_TRUE(is_ok(attend_layer_step(layer, &c_x, cache, nullptr, &c_out)));
  EXPECT_TRUE(same_bits(out, twin.step(x, twin_cache)));
  attend_attention_options options;
  attend_attention_options_init(&options);
  options.softcap = 0.5;
  ASSERT_TRUE(is_ok(attend_layer_step(layer, &c_token, cache, &options, &c_token_out)));
  EXPECT_TRUE(same_bits(token_out, twin.step(token, twin_cache, {.softcap = 0.5})));
  ASSERT_TRUE(is_ok(attend_kv_cache_length(cache, &length)));
  EXPECT_EQ(length, M + 1);

  // A step that is refused leaves the cache as it was.
  EXPECT_TRUE(is_refused(attend_layer_step(layer, &c_x, cache, nullptr, &c_out), "6"));
  EXPECT_TRUE(is_refused(attend_layer_step(layer, &c_token, cache, nullptr, &c_out), "out shape"));
  EXPECT_TRUE(is_refused(attend_layer_step(layer, &c_token, cache, nullptr, nullptr), "out is null"));
  EXPECT_TRUE(is_refused(attend_layer_step(nullptr, &c_token, cache, nullptr, &c_token_out), "layer is null"));
  EXPECT_TRUE(is_refused(attend_layer_step(layer, nullptr, cache, nullptr, &c_token_out), "x is null"));
  EXPECT_TRUE(is_refused(attend_layer_step(layer, &c_token, nullptr, nullptr, &c_token_out), "cache is null"));
  ASSERT_TRUE(is_ok(attend_kv_cache_length(cache, &length)));
  EXPECT_EQ(length, M + 1);

  ASSERT_TRUE(is_ok(attend_kv_cache_truncate(cache, 2)));
  ASSERT_TRUE(is_ok(attend_kv_cache_length(cache, &length)));
  EXPECT_EQ(length, 2);
  EXPECT_TRUE(is_refused(attend_kv_cache_truncate(cache, 3), "3"));
  EXPECT_TRUE(is_refused(attend_kv_cache_truncate(nullptr, 0), "cache is null"));
  EXPECT_TRUE(is_refused(attend_kv_cache_length(nullptr, &length), "cache is null"));
  EXPECT_TRUE(is_refused(attend_kv_cache_length(cache, nullptr), "length is null"));
  attend_kv_cache_free(cache);

  EXPECT_TRUE(is_refused(attend_kv_cache_create(layer, -1, 8, &cache), "-1"));
  EXPECT_EQ(cache, nullptr);
  EXPECT_TRUE(is_refused(attend_kv_cache_create(nullptr, 1, 8, &cache), "layer is null"));
  EXPECT_TRUE(is_refused(attend_kv_cache_create(layer, 1, 8, nullptr), "null"));
}

TEST_F(CAbiLayer, BadArgumentsAreRefused) {
  attend_layer* none = layer;
  EXPECT_TRUE(is_refused(attend_layer_create(nullptr, &none), "config is null"));
  EXPECT_EQ(none, nullptr);
  EXPECT_TRUE(is_refused(attend_layer_create(&c_config, nullptr), "null"));
  const auto refused = [&](auto change, const char* words) {
    attend_layer_config bad = c_config;
    change(bad);
    return is_refused(attend_layer_create(&bad, &none), words);
  };
  EXPECT_TRUE(refused([](auto& c) { c.struct_size -= 4; }, "attend_layer_config_init"));
  EXPECT_TRUE(refused([](auto& c) { c.dtype = 9; }, "9"));
  EXPECT_TRUE(refused([](auto& c) { c.width = 0; }, "width"));
  EXPECT_TRUE(refused([](auto& c) { c.kv_heads = 3; }, "heads"));
  EXPECT_TRUE(refused([](auto& c) { c.rope_style = 7; }, "style is 7"));
  EXPECT_TRUE(refused([](auto& c) { c.width = c.head_dim = std::int64_t{1} << 40; }, ""));

  attend_tensor parameter;
  EXPECT_TRUE(is_refused(attend_layer_parameter(layer, "wz", &parameter), "\"wz\""));
  EXPECT_TRUE(is_refused(attend_layer_parameter(layer, nullptr, &parameter), "name is null"));
  EXPECT_TRUE(is_refused(attend_layer_parameter(layer, "wq", nullptr), "parameter is null"));
  EXPECT_TRUE(is_refused(attend_layer_parameter(nullptr, "wq", &parameter), "layer is null"));
  EXPECT_TRUE(is_refused(attend_layer_initialise(nullptr, 1), "layer is null"));
  EXPECT_TRUE(is_refused(attend_layer_parameter_count(layer, nullptr), "count is null"));
  std::int64_t count = 0;
  EXPECT_TRUE(is_refused(attend_layer_parameter_count(nullptr, &count), "layer is null"));

  const auto forward = [&](const attend_tensor* x_, const attend_tensor* out_, const attend_tensor* weights_) {
    return attend_layer_forward(layer, x_, nullptr, nullptr, out_, weights_, nullptr);
  };
  EXPECT_TRUE(is_refused(forward(nullptr, &c_out, nullptr), "x is null"));
  EXPECT_TRUE(is_refused(forward(&c_x, nullptr, nullptr), "out is null"));
  EXPECT_TRUE(is_refused(forward(&c_out, &c_out, nullptr), "expected"));
  attend_tensor bad = c_out;
  bad.dtype = ATTEND_BF16;
  EXPECT_TRUE(is_refused(forward(&c_x, &bad, nullptr), "out dtype is bf16"));
  bad = c_out;
  bad.strides[2] = 0;
  EXPECT_TRUE(is_refused(forward(&c_x, &bad, nullptr), "place of its own"));
  EXPECT_TRUE(is_refused(forward(&c_x, &c_out, &c_out), "weights shape"));
  attend_layer_saved* saved = nullptr;
  EXPECT_TRUE(
      is_refused(attend_layer_forward(nullptr, &c_x, nullptr, nullptr, &c_out, nullptr, &saved), "layer is null"));
  attend_layer_free(nullptr);
  attend_layer_saved_free(nullptr);
  attend_layer_gradients_free(nullptr);
  attend_kv_cache_free(nullptr);
}

// An empty batch may have any length, which RoPE's table would follow.
TEST_F(CAbiLayer, AnEmptyBatchOfAnyLengthIsNoInternalError) {
  const auto empty = [](std::int64_t width) {
    return attend_tensor{ATTEND_F32, nullptr, {0, 1, std::numeric_limits<std::int64_t>::max(), width}, {0, 0, 0, 1}};
  };
  const attend_tensor from = empty(kWidth), to = empty(c_config.output_width);
  EXPECT_EQ(attend_layer_forward(layer, &from, nullptr, nullptr, &to, nullptr, nullptr), ATTEND_OUT_OF_MEMORY)
      << attend_last_error();
}

TEST(CAbiLayerConfig, AParameterTheConfigDoesNotCallForIsRefused) {
  attend_layer_config config;
  attend_layer_config_init(&config);
  config.width = 4;
  attend_layer* layer = nullptr;
  ASSERT_TRUE(is_ok(attend_layer_create(&config, &layer)));
  attend_tensor parameter;
  EXPECT_TRUE(is_refused(attend_layer_parameter(layer, "bq", &parameter), "does not have"));
  ASSERT_TRUE(is_ok(attend_layer_parameter(layer, "wq", &parameter)));
  attend_layer_free(layer);
}

}  // namespace
}  // namespace attend
