// Tests of the C ABI of latent attention: the same bits as C++.
#include "attend/attend_variants.h"
#include "attend/latent_attention.hpp"
#include "unit/c_abi_tensors.hpp"

namespace attend::test {
namespace {

constexpr std::int64_t B = 2, L = 5, kWidth = 12;

struct CAbiLatent : testing::Test {
  void SetUp() override {
    attend_rope_scaling_init(&scaling);
    scaling.kind = ATTEND_SCALING_YARN;
    scaling.factor = 4;
    scaling.original_length = 16;
    scaling.mscale = 0.7;
    scaling.mscale_all_dim = 1;
    attend_latent_config_init(&config);
    config.width = kWidth;
    config.heads = 2;
    config.q_rank = 6;
    config.kv_rank = 8;
    config.nope_dim = 4;
    config.rope_dim = 2;
    config.value_dim = 3;
    config.norm_eps = 1e-4;
    config.rope_theta = 500;
    config.rope_scaling = &scaling;
    ASSERT_TRUE(is_ok(attend_latent_create(&config, &layer)));
    ASSERT_TRUE(is_ok(attend_latent_initialise(layer, 42)));
    twin.initialise(42);
  }
  void TearDown() override { attend_latent_free(layer); }

  attend_rope_scaling scaling;
  attend_latent_config config;
  attend_latent* layer = nullptr;
  LatentAttention twin{
      {.width = kWidth,
       .heads = 2,
       .q_rank = 6,
       .kv_rank = 8,
       .nope_dim = 4,
       .rope_dim = 2,
       .value_dim = 3,
       .norm_eps = 1e-4,
       .rope_theta = 500,
       .rope_scaling = {
           .kind = RopeScaling::Kind::yarn, .factor = 4, .original_length = 16, .mscale = 0.7, .mscale_all_dim = 1}}};
  Tensor x = drawn(1, {B, 1, L, kWidth}), out{DType::f32, {B, 1, L, kWidth}};
  attend_tensor c_x = seen(x), c_out = seen(out);
};

TEST_F(CAbiLatent, ForwardBackwardAndParameters) {
  attend_mask* mask = nullptr;
  ASSERT_TRUE(is_ok(attend_mask_causal(ATTEND_LAST_KEY, &mask)));
  attend_attention_options options;
  attend_attention_options_init(&options);
  options.mask = mask;
  attend_latent_saved* saved = nullptr;
  ASSERT_TRUE(is_ok(attend_latent_forward(layer, &c_x, &options, &c_out, &saved)));
  attend_mask_free(mask);
  LatentAttentionSaved expected_saved;
  EXPECT_TRUE(same_bits(out, twin.forward(x, {.mask = causal()}, &expected_saved)));

  Tensor dout = drawn(2, out.shape());
  const attend_tensor c_dout = seen(dout);
  attend_latent_gradients* gradients = nullptr;
  ASSERT_TRUE(is_ok(attend_latent_backward(layer, &c_dout, saved, &gradients)));
  const LatentAttentionGradients g = twin.backward(dout, expected_saved);
  const LatentAttentionParameters& p = twin.parameters();
  const std::tuple<const char*, const Tensor*, const Tensor*> all[] = {
      {"wq_down", &g.parameters.wq_down, &p.wq_down},
      {"q_norm", &g.parameters.q_norm, &p.q_norm},
      {"wq", &g.parameters.wq, &p.wq},
      {"wkv_down", &g.parameters.wkv_down, &p.wkv_down},
      {"kv_norm", &g.parameters.kv_norm, &p.kv_norm},
      {"wkv_up", &g.parameters.wkv_up, &p.wkv_up},
      {"wo", &g.parameters.wo, &p.wo}};
  attend_tensor tensor;
  ASSERT_TRUE(is_ok(attend_latent_gradient(gradients, "dx", &tensor)));
  EXPECT_TRUE(same_bits(tensor, g.dx));
  for (const auto& [name, gradient, parameter] : all) {
    ASSERT_TRUE(is_ok(attend_latent_gradient(gradients, name, &tensor))) << name;
    EXPECT_TRUE(same_bits(tensor, *gradient)) << name;
    ASSERT_TRUE(is_ok(attend_latent_parameter(layer, name, &tensor))) << name;
    EXPECT_TRUE(same_bits(tensor, *parameter)) << name;
  }
  EXPECT_TRUE(is_refused(attend_latent_gradient(gradients, "wk", &tensor), "\"wk\""));
  EXPECT_TRUE(is_refused(attend_latent_parameter(layer, nullptr, &tensor), "name is null"));
  attend_latent_gradients_free(gradients);
  attend_latent_saved_free(saved);
}

TEST_F(CAbiLatent, TheCache) {
  attend_latent_cache* cache = nullptr;
  ASSERT_TRUE(is_ok(attend_latent_cache_create(layer, B, 2 * L, &cache)));
  LatentCache expected(twin.config(), B, 2 * L);
  ASSERT_TRUE(is_ok(attend_latent_prefill(layer, &c_x, cache, nullptr, &c_out)));
  EXPECT_TRUE(same_bits(out, twin.prefill(x, expected)));
  ASSERT_TRUE(is_ok(attend_latent_step(layer, &c_x, cache, nullptr, &c_out)));
  EXPECT_TRUE(same_bits(out, twin.step(x, expected)));
  int64_t length = 0, bytes = 0, expanded = 0;
  ASSERT_TRUE(is_ok(attend_latent_cache_length(cache, &length)));
  EXPECT_EQ(length, 2 * L);
  EXPECT_TRUE(is_refused(attend_latent_step(layer, &c_x, cache, nullptr, &c_out), "expected at most 0"));
  ASSERT_TRUE(is_ok(attend_latent_cache_truncate(cache, L)));
  EXPECT_TRUE(is_refused(attend_latent_cache_truncate(cache, L + 1), "length is 6"));
  ASSERT_TRUE(is_ok(attend_latent_bytes_per_token(layer, &bytes, &expanded)));
  EXPECT_EQ(bytes, 4 * 10);
  EXPECT_EQ(expanded, 4 * 2 * 9);
  attend_latent_cache_free(cache);
}

TEST_F(CAbiLatent, RefusesBadArguments) {
  attend_latent* other = layer;
  config.kv_rank = 13;
  EXPECT_TRUE(is_refused(attend_latent_create(&config, &other), "kv_rank is 13, expected at most 12"));
  EXPECT_EQ(other, nullptr);
  config.kv_rank = 8;
  config.rope_style = ATTEND_ROPE_NONE;
  EXPECT_TRUE(is_refused(attend_latent_create(&config, &other), "ATTEND_ROPE_NONE"));
  config.rope_style = ATTEND_ROPE_HALF_SPLIT;
  scaling.struct_size = 1;
  EXPECT_TRUE(is_refused(attend_latent_create(&config, &other), "attend_rope_scaling_init"));
  EXPECT_TRUE(is_refused(attend_latent_forward(nullptr, &c_x, nullptr, &c_out, nullptr), "layer is null"));
  EXPECT_TRUE(is_refused(attend_latent_forward(layer, &c_x, nullptr, nullptr, nullptr), "out is null"));
}

}  // namespace
}  // namespace attend::test
