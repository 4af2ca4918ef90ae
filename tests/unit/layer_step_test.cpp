// Tests of the KV cache and of step(): token by token and in chunks, it gives what forward gives.
#include <algorithm>

#include "unit/error_of.hpp"
#include "unit/layer_cases.hpp"

namespace attend::test::ops {
namespace {

// Rows [first, first + count) along length.
View rows(const View& x, std::int64_t first, std::int64_t count) {
  View part = x;
  part.data = static_cast<const char*>(x.data) + first * x.strides[2] * size_of(x.dtype);
  part.shape[2] = count;
  return part;
}

std::vector<MultiHeadAttentionConfig> step_configs() {
  return {{.width = 32, .heads = 4},
          {.width = 32,
           .heads = 4,
           .kv_heads = 2,
           .qkv_bias = true,
           .output_bias = true,
           .qk_norm = true,
           .rope = RopeStyle::half_split},
          {.width = 24,
           .output_width = 40,
           .heads = 6,
           .kv_heads = 1,
           .head_dim = 10,
           .value_dim = 7,
           .value_rank = 5,
           .rope = RopeStyle::interleaved,
           .rope_theta = 1e6}};
}

struct StepMask {
  const char* name;
  Mask mask;
  bool from_the_first;  // else its lengths ask for more keys than the first token has
};
std::vector<StepMask> step_masks() {
  return {{"causal", causal(), true},
          {"window", window(37, 0), true},
          {"causal and wide window", window(530, 0), true},
          {"padding", causal() & left_padding({3}), false},
          {"prefix", prefix({5}), false}};
}

// The whole sequence through step(), in chunks of these sizes, over and over.
Tensor step_through(const MultiHeadAttention& layer, const Tensor& x, const Mask& mask,
                    const std::vector<std::int64_t>& chunks) {
  const std::int64_t B = x.shape()[0], L = x.shape()[2];
  KvCache cache(layer.config(), B, L);
  Tensor all(x.dtype(), {B, 1, L, layer.config().output_width});
  std::size_t piece = 0;
  for (std::int64_t at = 0; at < L; ++piece) {
    const std::int64_t count = std::min(chunks[piece % chunks.size()], L - at);
    const Tensor part = layer.step(rows(x, at, count), cache, {.mask = mask});
    EXPECT_EQ(part.shape(), (Shape{B, 1, count, layer.config().output_width}));
    for_each_element(part.shape(),
                     [&](auto b, auto h, auto i, auto d) { store(all, b, h, at + i, d, load(part, b, h, i, d)); });
    at += count;
    EXPECT_EQ(cache.length(), at);
  }
  return all;
}

TEST(LayerStep, EqualsForwardToTheBitInF32) {
  constexpr std::int64_t kTokens = 650;  // beyond the split of 512 keys
  for (const MultiHeadAttentionConfig& config : step_configs()) {
    MultiHeadAttention layer(config);
    layer.initialise(1);
    for (const std::int64_t B : {1, 3}) {
      const Tensor x = random_tensor(DType::f32, {B, 1, kTokens, config.width}, 2);
      for (const auto& [name, mask, from_the_first] : step_masks()) {
        const Tensor whole = layer.forward(x, {.mask = mask});
        if (from_the_first) {
          EXPECT_TRUE(same_bits(step_through(layer, x, mask, {1}), whole)) << name << ", token by token, batch " << B;
        }
        EXPECT_TRUE(same_bits(step_through(layer, x, mask, {64, 1, 7, 2, 1}), whole))
            << name << ", chunks, batch " << B;
        EXPECT_TRUE(same_bits(step_through(layer, x, mask, {600, 1}), whole)) << name << ", prefill, batch " << B;
      }
    }
  }
}

TEST(LayerStep, StaysWithinRoundingInHalfPrecision) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (MultiHeadAttentionConfig config : step_configs()) {
      config.dtype = dtype;
      MultiHeadAttention layer(config);
      layer.initialise(3);
      const Tensor x = random_tensor(dtype, {2, 1, 600, config.width}, 4);
      const Tensor whole = layer.forward(x, {.mask = causal()});
      const double allowed = 2 * rounding(dtype, max_abs(whole));
      const auto bound = [&](auto, auto, auto, auto) { return allowed; };
      expect_within(step_through(layer, x, causal(), {1}), whole, bound, "token by token");
      expect_within(step_through(layer, x, causal(), {64, 1, 7, 2}), whole, bound, "chunks");
    }
  }
}

TEST(LayerStep, IsCausalUnlessTold) {
  MultiHeadAttention layer({.width = 16, .heads = 2, .rope = RopeStyle::half_split});
  layer.initialise(5);
  const Tensor x = random_tensor(DType::f32, {1, 1, 9, 16}, 6);
  KvCache by_default(layer.config(), 1, 9), open(layer.config(), 1, 9);
  EXPECT_TRUE(same_bits(layer.step(x, by_default), layer.forward(x, {.mask = causal()})));
  EXPECT_TRUE(same_bits(layer.step(x, open, {}), layer.forward(x)));
}

TEST(LayerStep, CacheHoldsTurnedKeysAndForgets) {
  MultiHeadAttention layer({.width = 16, .heads = 4, .kv_heads = 2, .value_dim = 3, .rope = RopeStyle::half_split});
  layer.initialise(7);
  const Tensor x = random_tensor(DType::f32, {2, 1, 6, 16}, 8);
  KvCache cache(layer.config(), 2, 10);
  EXPECT_EQ(cache.capacity(), 10);
  EXPECT_EQ(cache.bytes(), 2 * 2 * 10 * (4 + 3) * 4);
  EXPECT_EQ(cache.keys().shape, (Shape{2, 2, 0, 4}));

  const Tensor first = layer.step(x, cache);
  EXPECT_EQ(cache.keys().shape, (Shape{2, 2, 6, 4}));
  EXPECT_EQ(cache.values().shape, (Shape{2, 2, 6, 3}));
  MultiHeadAttentionSaved saved;
  layer.forward(x, {.mask = causal()}, {.saved = &saved});
  for_each_element(cache.keys().shape, [&](auto b, auto h, auto i, auto d) {
    EXPECT_EQ(load(cache.keys(), b, h, i, d), load(saved.k, b, 0, i, h * 4 + d));
  });
  for_each_element(cache.values().shape, [&](auto b, auto h, auto i, auto d) {
    EXPECT_EQ(load(cache.values(), b, h, i, d), load(saved.v, b, 0, i, h * 3 + d));
  });

  cache.truncate(2);  // the last four once more
  EXPECT_EQ(cache.length(), 2);
  const Tensor again = layer.step(rows(x, 2, 4), cache);
  for_each_element(again.shape(), [&](auto b, auto h, auto i, auto d) {
    EXPECT_EQ(load(again, b, h, i, d), load(first, b, h, i + 2, d));
  });
}

TEST(LayerStep, EmptyStepsWork) {
  MultiHeadAttention layer({.width = 8, .heads = 2});
  KvCache cache(layer.config(), 2, 3), none(layer.config(), 0, 3);
  EXPECT_EQ(layer.step(Tensor(DType::f32, {2, 1, 0, 8}), cache).shape(), (Shape{2, 1, 0, 8}));
  EXPECT_EQ(cache.length(), 0);
  EXPECT_EQ(layer.step(Tensor(DType::f32, {0, 1, 2, 8}), none).shape(), (Shape{0, 1, 2, 8}));
  EXPECT_EQ(none.length(), 2);
}

// Each is refused, and the cache is as it was.
TEST(LayerStep, RefusesBadArgumentsAndLeavesTheCache) {
  const std::string op = "multi_head_attention: ";
  MultiHeadAttention layer({.width = 8, .heads = 2, .rope = RopeStyle::half_split});
  layer.initialise(9);
  const Tensor x = random_tensor(DType::f32, {1, 1, 4, 8}, 10), next = random_tensor(DType::f32, {1, 1, 1, 8}, 11);
  KvCache cache(layer.config(), 1, 5), fresh(layer.config(), 1, 5);
  layer.step(x, cache);
  layer.step(x, fresh);
  const Tensor two = random_tensor(DType::f32, {2, 1, 1, 8}, 12), wide = random_tensor(DType::f32, {1, 1, 1, 9}, 13);
  const Tensor half(DType::f16, {1, 1, 1, 8}), bias = random_tensor(DType::f32, {1, 1, 1, 77}, 14);

  EXPECT_EQ(error_of([&] { layer.step(x, cache); }), op + "x length is 4, expected at most 1 (a cache of 5 holds 4)");
  EXPECT_EQ(error_of([&] { layer.step(two, cache); }), op + "cache keys shape is [1, 2, 5, 4], expected [2, 2, 5, 4]");
  EXPECT_EQ(error_of([&] { layer.step(wide, cache); }), op + "x shape is [1, 1, 1, 9], expected [1, 1, 1, 8]");
  EXPECT_EQ(error_of([&] { layer.step(half, cache); }), op + "x dtype is f16, expected f32");
  const std::string aligned =
      " of step is aligned to first_key, expected last_key (the new tokens are the last of "
      "the sequence)";
  EXPECT_EQ(error_of([&] { layer.step(next, cache, {.mask = causal(Align::first_key)}); }),
            op + "causal mask" + aligned);
  EXPECT_EQ(error_of([&] { layer.step(next, cache, {.mask = causal() & window(3, 0, Align::first_key)}); }),
            op + "window mask" + aligned);
  EXPECT_EQ(error_of([&] { layer.step(next, cache, {.mask = prefix({2}, Align::first_key)}); }),
            op + "prefix mask" + aligned);
  const Tensor slopes(DType::f32, {1, 2, 1, 1});
  EXPECT_EQ(
      error_of([&] { layer.step(next, cache, {.alibi_slopes = slopes.view(), .alibi_diagonal = Align::first_key}); }),
      op + "ALiBi" + aligned);
  EXPECT_NE(error_of([&] { layer.step(next, cache, {.bias = bias.view()}); }).find("bias"), std::string::npos);
  KvCache other({.width = 8, .heads = 4}, 1, 5), f16({.dtype = DType::f16, .width = 8, .heads = 2}, 1, 5);
  EXPECT_EQ(error_of([&] { layer.step(next, other); }), op + "cache keys shape is [1, 4, 5, 2], expected [1, 2, 5, 4]");
  EXPECT_EQ(error_of([&] { layer.step(next, f16); }), op + "cache dtype is f16, expected f32");
  MultiHeadAttention crossing({.width = 8, .context_width = 6, .heads = 2});
  EXPECT_EQ(error_of([&] { crossing.step(next, cache); }),
            op + "context_width is 6, expected 8 (step makes K and V from x)");

  EXPECT_EQ(cache.length(), 4);
  EXPECT_TRUE(same_bits(layer.step(next, cache), layer.step(next, fresh)));

  EXPECT_EQ(error_of([&] { cache.truncate(6); }),
            "KvCache::truncate: length is 6, expected 0 to 5 (the length so far)");
  EXPECT_EQ(error_of([&] { cache.truncate(-1); }),
            "KvCache::truncate: length is -1, expected 0 to 5 (the length so far)");
  EXPECT_EQ(error_of([] { KvCache({.width = 8}, -1, 5); }), "KvCache: batch is -1, expected at least 0");
  EXPECT_EQ(error_of([] { KvCache({.width = 8}, 1, -5); }), "KvCache: capacity is -5, expected at least 0");
  EXPECT_NE(error_of([] { KvCache({.width = 8}, 1, std::int64_t{1} << 61); }), "");
}

// A diagonal given outright says where the first new token stands.
TEST(LayerStep, TakesADiagonalGivenOutright) {
  MultiHeadAttention layer({.width = 8, .heads = 2});
  layer.initialise(15);
  const Tensor x = random_tensor(DType::f32, {1, 1, 6, 8}, 16);
  KvCache a(layer.config(), 1, 6), b(layer.config(), 1, 6);
  layer.step(rows(x, 0, 4), a);
  layer.step(rows(x, 0, 4), b);
  EXPECT_TRUE(
      same_bits(layer.step(rows(x, 4, 2), a), layer.step(rows(x, 4, 2), b, {.mask = causal(Diagonal::at({4}))})));
}

}  // namespace
}  // namespace attend::test::ops
