// The C ABI of the ring: the same bits as C++, and what cannot be read is refused on all ranks.
#include "attend/attend_ring.h"

#include <array>
#include <cstddef>

#include "ring/ring_testing.hpp"
#include "unit/c_abi_tensors.hpp"
#include "unit/op_testing.hpp"

namespace attend::test {
namespace {

int world_handle() {
  return world().handle;
}

Tensor part(const Shape& whole, std::uint64_t key) {
  return ring_part(ops::random_tensor(DType::f32, whole, key), RingSharding::zigzag, world_rank(), world_size());
}

TEST(RingCAbi, AttentionHasTheBitsOfCpp) {
  const std::int64_t L = 2 * world_size() * 10;
  Tensor q = part({1, 4, L, 16}, 1), k = part({1, 2, L, 16}, 2), v = part({1, 2, L, 8}, 3),
         dout = part({1, 4, L, 8}, 4);
  const RingOptions options{.sharding = RingSharding::zigzag, .attention = {.mask = causal()}};
  Tensor out(DType::f32, dout.shape()), lse(DType::f32, {1, 4, L / world_size(), 1}), dq(DType::f32, q.shape()),
      dk(DType::f32, k.shape()), dv(DType::f32, v.shape());
  ring_attention(world(), q, k, v, out, options, lse);
  ring_attention_backward(world(), dout, q, k, v, out, lse, {dq, dk, dv}, options);

  Tensor c_out(DType::f32, out.shape()), c_lse(DType::f32, lse.shape()), c_dq(DType::f32, q.shape()),
      c_dk(DType::f32, k.shape()), c_dv(DType::f32, v.shape());
  attend_mask* mask = nullptr;
  ASSERT_TRUE(is_ok(attend_mask_causal(ATTEND_LAST_KEY, &mask)));
  attend_attention_options attention;
  attend_attention_options_init(&attention);
  attention.mask = mask;
  attend_ring_times times;
  attend_ring_times_init(&times);
  attend_ring_options given;
  attend_ring_options_init(&given);
  given.sharding = ATTEND_RING_ZIGZAG;
  given.attention = &attention;
  given.times = &times;
  const attend_tensor tq = seen(q), tk = seen(k), tv = seen(v), tdout = seen(dout), tout = seen(c_out),
                      tlse = seen(c_lse), tdq = seen(c_dq), tdk = seen(c_dk), tdv = seen(c_dv);
  EXPECT_TRUE(is_ok(attend_ring_attention(world_handle(), &tq, &tk, &tv, &tout, &tlse, &given)));
  EXPECT_TRUE(is_ok(
      attend_ring_attention_backward(world_handle(), &tdout, &tq, &tk, &tv, &tout, &tlse, &tdq, &tdk, &tdv, &given)));
  attend_mask_free(mask);
  EXPECT_TRUE(same_bits(c_out, out));
  EXPECT_TRUE(same_bits(c_lse, lse));
  EXPECT_TRUE(same_bits(c_dq, dq));
  EXPECT_TRUE(same_bits(c_dk, dk));
  EXPECT_TRUE(same_bits(c_dv, dv));
  EXPECT_GT(times.compute, 0);
  double seconds = -1;
  EXPECT_TRUE(is_ok(attend_ring_transfer_seconds(world_handle(), &tk, &tv, 1, &seconds)));
  EXPECT_GE(seconds, 0);
}

TEST(RingCAbi, TheLayerHasTheBitsOfCpp) {
  const std::int64_t L = 2 * world_size() * 6;
  MultiHeadAttention layer({.width = 16, .heads = 4, .kv_heads = 2, .qk_norm = true, .rope = RopeStyle::half_split});
  layer.initialise(5);
  attend_layer_config config;
  attend_layer_config_init(&config);
  config.width = 16, config.heads = 4, config.kv_heads = 2, config.qk_norm = 1;
  config.rope_style = ATTEND_ROPE_HALF_SPLIT;
  attend_layer* c_layer = nullptr;
  ASSERT_TRUE(is_ok(attend_layer_create(&config, &c_layer)));
  ASSERT_TRUE(is_ok(attend_layer_initialise(c_layer, 5)));
  Tensor x = part({2, 1, L, 16}, 6), dout = part({2, 1, L, 16}, 7), c_y(DType::f32, x.shape());
  const RingOptions options{.sharding = RingSharding::zigzag};
  MultiHeadAttentionSaved saved;
  const Tensor y = ring_multi_head_attention(world(), layer, x, options, &saved);
  const MultiHeadAttentionGradients g = ring_multi_head_attention_backward(world(), layer, dout, saved, options);

  attend_ring_options given;
  attend_ring_options_init(&given);
  given.sharding = ATTEND_RING_ZIGZAG;
  const attend_tensor tx = seen(x), tdout = seen(dout), ty = seen(c_y);
  attend_layer_saved* kept = nullptr;
  attend_layer_gradients* gradients = nullptr;
  ASSERT_TRUE(is_ok(attend_ring_layer_forward(world_handle(), c_layer, &tx, &given, &ty, &kept)));
  ASSERT_TRUE(is_ok(attend_ring_layer_backward(world_handle(), c_layer, &tdout, kept, &given, &gradients)));
  EXPECT_TRUE(same_bits(c_y, y));
  attend_tensor dx, dwk;
  ASSERT_TRUE(is_ok(attend_layer_gradient(gradients, "dx", &dx)));
  ASSERT_TRUE(is_ok(attend_layer_gradient(gradients, "wk", &dwk)));
  EXPECT_TRUE(same_bits(dx, g.dx));
  EXPECT_TRUE(same_bits(dwk, g.parameters.wk));
  attend_layer_gradients_free(gradients);
  attend_layer_saved_free(kept);
  attend_layer_free(c_layer);
}

// Structs of an older header, which lack their last field: no byte past them is written, and calls work.
TEST(RingCAbi, ShorterStructsAreAccepted) {
  constexpr std::size_t kOptions = offsetof(attend_ring_options, times),
                        kTimes = offsetof(attend_ring_times, bytes_sent);
  alignas(8) std::array<std::byte, sizeof(attend_ring_options)> options_memory;
  alignas(8) std::array<std::byte, sizeof(attend_ring_times)> times_memory;
  options_memory.fill(std::byte{0xAB});
  times_memory.fill(std::byte{0xAB});
  auto* options = reinterpret_cast<attend_ring_options*>(options_memory.data());
  auto* times = reinterpret_cast<attend_ring_times*>(times_memory.data());
  attend_ring_options_init_sized(options, kOptions);
  attend_ring_times_init_sized(times, kTimes);

  Tensor x = part({1, 2, 2 * world_size() * 3, 8}, 1), out(DType::f32, x.shape());
  const attend_tensor tx = seen(x), tout = seen(out);
  // The bytes behind are no pointer to times.
  EXPECT_TRUE(is_ok(attend_ring_attention(world_handle(), &tx, &tx, &tx, &tout, nullptr, options)));
  attend_ring_options given;
  attend_ring_options_init(&given);
  given.times = times;
  EXPECT_TRUE(is_ok(attend_ring_attention(world_handle(), &tx, &tx, &tx, &tout, nullptr, &given)));
  EXPECT_GT(times->compute, 0);
  EXPECT_EQ(times->struct_size, kTimes);
  for (std::size_t n = kOptions; n < options_memory.size(); ++n) EXPECT_EQ(options_memory[n], std::byte{0xAB});
  for (std::size_t n = kTimes; n < times_memory.size(); ++n) EXPECT_EQ(times_memory[n], std::byte{0xAB});

  times->struct_size = 0;
  EXPECT_TRUE(is_refused(attend_ring_attention(world_handle(), &tx, &tx, &tx, &tout, nullptr, &given),
                         "attend_ring_times_init"));
}

TEST(RingCAbi, PositionsAreGiven) {
  std::int64_t positions[4] = {};
  EXPECT_TRUE(is_ok(attend_ring_positions(ATTEND_RING_ZIGZAG, 0, 2, 8, positions)));
  EXPECT_EQ(positions[3], 7);
  EXPECT_TRUE(is_refused(attend_ring_positions(ATTEND_RING_ZIGZAG, 0, 2, 6, positions), "a multiple of 4"));
  EXPECT_TRUE(is_refused(attend_ring_positions(ATTEND_RING_ZIGZAG, 0, 2, 8, nullptr), "positions is null"));
  EXPECT_TRUE(is_refused(attend_ring_positions(7, 0, 2, 8, positions), "sharding is 7"));
}

// One rank forgets an argument: nobody waits for it.
TEST(RingCAbi, WhatOneRankCannotReadIsRefusedOnAll) {
  Tensor x(DType::f32, {1, 2, 4, 8}), out(DType::f32, {1, 2, 4, 8});
  const attend_tensor tx = seen(x), tout = seen(out);
  const bool last = world_rank() == world_size() - 1;
  EXPECT_TRUE(is_refused(attend_ring_attention(world_handle(), &tx, last ? nullptr : &tx, &tx, &tout, nullptr, nullptr),
                         "k is null"));
  attend_ring_options options;
  attend_ring_options_init(&options);
  if (last) options.struct_size = 1;
  EXPECT_TRUE(
      is_refused(attend_ring_attention(world_handle(), &tx, &tx, &tx, &tout, nullptr, &options), "struct_size is 1"));
  EXPECT_TRUE(
      is_refused(attend_ring_layer_forward(world_handle(), nullptr, &tx, nullptr, &tout, nullptr), "layer is null"));
  EXPECT_TRUE(
      is_refused(attend_ring_layer_backward(world_handle(), nullptr, &tx, nullptr, nullptr, nullptr), "is null"));
  EXPECT_TRUE(is_refused(attend_ring_attention(99, &tx, &tx, &tx, &tout, nullptr, nullptr), "communicator is 99"));
}

}  // namespace
}  // namespace attend::test
