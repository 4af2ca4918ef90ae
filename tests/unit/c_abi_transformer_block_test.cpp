// Tests of the C ABI of the transformer block: the bits of the C++ calls, and bad arguments.
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

TEST(CAbiTransformerBlock, GivesTheBitsOfTheCppCalls) {
  attend_layer_config layer;
  attend_layer_config_init(&layer);
  layer.width = 8, layer.heads = 2, layer.kv_heads = 1, layer.qkv_bias = 1;
  attend_transformer_block_config config;
  attend_transformer_block_config_init(&config);
  config.attention = &layer, config.feed_forward = ATTEND_GELU, config.hidden = 12;
  TransformerBlock cpp({.attention = {.width = 8, .heads = 2, .kv_heads = 1, .qkv_bias = true},
                        .feed_forward = FeedForward::gelu,
                        .hidden = 12});
  cpp.initialise(3);
  attend_transformer_block* block = nullptr;
  ASSERT_TRUE(is_ok(attend_transformer_block_create(&config, &block)));
  ASSERT_TRUE(is_ok(attend_transformer_block_initialise(block, 3)));
  attend_tensor parameter;
  ASSERT_TRUE(is_ok(attend_transformer_block_parameter(block, "up", &parameter)));
  EXPECT_TRUE(same_bits(parameter, cpp.parameters().up));
  ASSERT_TRUE(is_ok(attend_transformer_block_parameter(block, "wk", &parameter)));
  EXPECT_TRUE(same_bits(parameter, cpp.attention().parameters().wk));
  EXPECT_TRUE(is_refused(attend_transformer_block_parameter(block, "gate", &parameter), "does not have"));
  EXPECT_TRUE(is_refused(attend_transformer_block_parameter(block, "wx", &parameter), "attend.h lists"));
  std::int64_t count = 0;
  ASSERT_TRUE(is_ok(attend_transformer_block_parameter_count(block, &count)));
  EXPECT_EQ(count, cpp.parameter_count());

  Tensor x = drawn(1, {2, 1, 9, 8}), dout = drawn(2, x.shape()), out(DType::f32, x.shape());
  const attend_tensor cx = seen(x), cd = seen(dout), co = seen(out);
  attend_mask* mask = nullptr;
  ASSERT_TRUE(is_ok(attend_mask_causal(ATTEND_LAST_KEY, &mask)));
  attend_attention_options options;
  attend_attention_options_init(&options);
  options.mask = mask;
  ASSERT_TRUE(is_ok(attend_transformer_block_forward(block, &cx, &options, 4, &co)));
  EXPECT_TRUE(same_bits(out, cpp.forward(x, {.mask = causal()})));
  attend_transformer_block_gradients* gradients = nullptr;
  ASSERT_TRUE(is_ok(attend_transformer_block_backward(block, &cd, &cx, &options, 4, &gradients)));
  const TransformerBlockGradients expected = cpp.backward(dout, x, {.mask = causal()}, {4});
  attend_tensor gradient;
  ASSERT_TRUE(is_ok(attend_transformer_block_gradient(gradients, "dx", &gradient)));
  EXPECT_TRUE(same_bits(gradient, expected.dx));
  ASSERT_TRUE(is_ok(attend_transformer_block_gradient(gradients, "down", &gradient)));
  EXPECT_TRUE(same_bits(gradient, expected.parameters.down));
  ASSERT_TRUE(is_ok(attend_transformer_block_gradient(gradients, "bq", &gradient)));
  EXPECT_TRUE(same_bits(gradient, expected.attention.bq));
  EXPECT_TRUE(is_refused(attend_transformer_block_gradient(gradients, "dbias", &gradient), "does not have"));
  attend_transformer_block_gradients_free(gradients);

  EXPECT_TRUE(is_refused(attend_transformer_block_forward(block, &cx, &options, -1, &co), "block is -1"));
  EXPECT_TRUE(is_refused(attend_transformer_block_forward(nullptr, &cx, &options, 0, &co), "block is null"));
  EXPECT_TRUE(is_refused(attend_transformer_block_backward(block, nullptr, &cx, &options, 0, &gradients), "dout"));
  EXPECT_EQ(gradients, nullptr);
  attend_mask_free(mask);
  attend_transformer_block_free(block);

  config.feed_forward = 9;
  EXPECT_TRUE(is_refused(attend_transformer_block_create(&config, &block), "feed_forward is 9"));
  config.feed_forward = ATTEND_RELU, config.attention = nullptr;
  EXPECT_TRUE(is_refused(attend_transformer_block_create(&config, &block), "attention is null"));
  EXPECT_EQ(block, nullptr);
}

}  // namespace
}  // namespace attend
