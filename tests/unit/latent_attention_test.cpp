// Tests of multi-head latent attention: against its formulas, its two forms against each other, its cache.
#include "attend/latent_attention.hpp"

#include "attend/linear.hpp"
#include "reference/latent_attention.hpp"
#include "unit/error_of.hpp"
#include "unit/op_testing.hpp"

namespace attend::test::ops {
namespace {

const std::pair<const char*, Tensor LatentAttentionParameters::*> kLatentParameters[] = {
    {"wq_down", &LatentAttentionParameters::wq_down},
    {"q_norm", &LatentAttentionParameters::q_norm},
    {"wq", &LatentAttentionParameters::wq},
    {"wkv_down", &LatentAttentionParameters::wkv_down},
    {"kv_norm", &LatentAttentionParameters::kv_norm},
    {"wkv_up", &LatentAttentionParameters::wkv_up},
    {"wo", &LatentAttentionParameters::wo}};

std::vector<LatentAttentionConfig> configs() {
  const RopeScaling yarn{
      .kind = RopeScaling::Kind::yarn, .factor = 8, .original_length = 32, .mscale = 0.7, .mscale_all_dim = 1};
  return {{.width = 24, .heads = 3, .q_rank = 8, .kv_rank = 12, .nope_dim = 6, .rope_dim = 4, .value_dim = 5},
          {.width = 10, .heads = 2, .kv_rank = 10, .nope_dim = 3, .rope_dim = 2, .value_dim = 7, .norm_eps = 1e-3},
          {.width = 16,
           .heads = 4,
           .q_rank = 16,
           .kv_rank = 7,
           .nope_dim = 5,
           .rope_dim = 6,
           .value_dim = 4,
           .rope = RopeStyle::half_split,
           .rope_theta = 100,
           .rope_scaling = yarn},
          {.width = 6, .heads = 1, .kv_rank = 1, .nope_dim = 1, .rope_dim = 2, .value_dim = 1, .scale = 0.3}};
}

LatentAttention make_layer(LatentAttentionConfig config, DType dtype) {
  config.dtype = dtype;
  LatentAttention layer(config);
  layer.initialise(7);
  layer.parameters().kv_norm = random_tensor(dtype, layer.parameters().kv_norm.shape(), 8);
  if (config.q_rank > 0) layer.parameters().q_norm = random_tensor(dtype, layer.parameters().q_norm.shape(), 9);
  return layer;
}

std::vector<Mask> masks() {
  return {no_mask(), causal(), causal() & window(3, 0), left_padding({1}) & causal()};
}

// A few roundings of numbers as large as the largest: every row is a chain of five products and two norms.
double bound_of(DType dtype, const View& expected, double slack) {
  return (dtype == DType::f32 ? 1e-5 : dtype == DType::f16 ? 0.02 : 0.15) * slack * (max_abs(expected) + 0.05);
}

TEST(LatentAttention, MatchesTheFormulas) {
  for (const LatentAttentionConfig& config : configs()) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64}) {
      const LatentAttention layer = make_layer(config, dtype);
      for (const std::int64_t L : {1, 7, 70}) {
        const Tensor x = random_tensor(dtype, {2, 1, L, config.width}, 1);
        for (const Mask& mask : masks()) {
          const Tensor expected = reference::latent_attention(layer.config(), layer.parameters(), x, {.mask = mask});
          const double bound = dtype == DType::f64 ? 1e-12 : bound_of(dtype, expected, 1);
          const Strided strided(x, MemoryLayout::odd);
          expect_within(layer.forward(x, {.mask = mask}), expected, [&](auto...) { return bound; }, name(dtype));
          EXPECT_TRUE(same_bits(layer.forward(strided.view, {.mask = mask}), layer.forward(x, {.mask = mask})));
        }
      }
    }
  }
}

TEST(LatentAttention, GradientsByCentralDifferences) {
  for (const LatentAttentionConfig& config : configs()) {
    LatentAttention layer = make_layer(config, DType::f64);
    Tensor x = random_tensor(DType::f64, {2, 1, 4, config.width}, 1);
    const Tensor dout = random_tensor(DType::f64, x.shape(), 2);
    const AttentionOptions options{.mask = causal()};
    LatentAttentionSaved saved;
    layer.forward(x, options, &saved);
    const LatentAttentionGradients g = layer.backward(dout, saved);
    const LatentAttentionGradients formulas =
        reference::latent_attention_backward(layer.config(), layer.parameters(), dout, x, options);
    const auto loss = [&] { return dot(layer.forward(x, options), dout); };
    expect_gradient(g.dx, x, loss, "x");
    expect_within(formulas.dx, g.dx, [](auto...) { return 1e-11; }, "x");
    for (const auto& [name, member] : kLatentParameters) {
      if ((layer.parameters().*member).empty()) continue;
      expect_gradient(g.parameters.*member, layer.parameters().*member, loss, name);
      expect_within(formulas.parameters.*member, g.parameters.*member, [](auto...) { return 1e-11; }, name);
    }
  }
}

TEST(LatentAttention, GradientsAreThoseOfTheFormulas) {
  for (const LatentAttentionConfig& config : configs()) {
    for (const DType dtype : kFloats) {
      const LatentAttention layer = make_layer(config, dtype);
      const Tensor x = random_tensor(dtype, {2, 1, 37, config.width}, 1), dout = random_tensor(dtype, x.shape(), 2);
      const AttentionOptions options{.mask = causal()};
      LatentAttentionSaved saved;
      layer.forward(x, options, &saved);
      const LatentAttentionGradients g = layer.backward(dout, saved);
      const LatentAttentionGradients expected =
          reference::latent_attention_backward(layer.config(), layer.parameters(), dout, x, options);
      const auto check = [&](const Tensor& got, const Tensor& want, const char* what) {
        const double bound = bound_of(dtype, want, 2);
        expect_within(got, want, [&](auto...) { return bound; }, std::string(what) + " " + name(dtype));
      };
      check(g.dx, expected.dx, "dx");
      for (const auto& [name, member] : kLatentParameters) {
        if (!(layer.parameters().*member).empty()) check(g.parameters.*member, expected.parameters.*member, name);
      }
    }
  }
}

// Tokens [first, first + count) of x.
View tokens(const Tensor& x, std::int64_t first, std::int64_t count) {
  View view = x.view();
  view.data = static_cast<const char*>(view.data) + first * view.strides[2] * size_of(view.dtype);
  view.shape[2] = count;
  return view;
}

// What a cache gave for pieces of a sequence, put together, is what forward gives for the whole.
TEST(LatentAttention, BothFormsOverACacheAreForward) {
  for (const LatentAttentionConfig& config : configs()) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64}) {
      const LatentAttention layer = make_layer(config, dtype);
      const std::int64_t L = 75;
      const Tensor x = random_tensor(dtype, {2, 1, L, config.width}, 1);
      const Tensor whole = layer.forward(x, {.mask = causal()});
      const double bound = dtype == DType::f64 ? 1e-12 : bound_of(dtype, whole, 2);
      LatentCache cache(layer.config(), 2, L);
      EXPECT_EQ(cache.bytes_per_token(), (config.kv_rank + config.rope_dim) * size_of(dtype));
      EXPECT_EQ(cache.bytes(), 2 * L * cache.bytes_per_token());
      const std::pair<std::int64_t, bool> pieces[] = {{66, true}, {1, false}, {3, false}, {4, true}, {1, false}};
      std::int64_t at = 0;
      for (const auto& [count, expanded] : pieces) {
        const View next = tokens(x, at, count);
        const Tensor y = expanded ? layer.prefill(next, cache) : layer.step(next, cache);
        expect_within(y, tokens(whole, at, count), [&](auto...) { return bound; }, name(dtype));
        at += count;
        EXPECT_EQ(cache.length(), at);
      }
      // A token taken back and given again is the same token.
      const Tensor first = layer.step(tokens(x, 70, 1), (cache.truncate(70), cache));
      cache.truncate(70);
      EXPECT_TRUE(same_bits(layer.step(tokens(x, 70, 1), cache), first));
    }
  }
}

TEST(LatentAttention, BitsDoNotDependOnTheThreads) {
  const LatentAttention layer = make_layer(
      {.width = 64, .heads = 16, .q_rank = 24, .kv_rank = 48, .nope_dim = 16, .rope_dim = 8, .value_dim = 16},
      DType::f32);
  const Tensor x = random_tensor(DType::f32, {1, 1, 700, 64}, 1);
  expect_same_for_any_threads([&] { return layer.forward(x, {.mask = causal()}); }, "forward");
  expect_same_for_any_threads(
      [&] {
        LatentCache cache(layer.config(), 1, 700);
        layer.prefill(tokens(x, 0, 698), cache);
        return layer.step(tokens(x, 698, 2), cache);
      },
      "step");
  LatentAttentionSaved saved;
  layer.forward(x, {.mask = causal()}, &saved);
  expect_same_for_any_threads([&] { return layer.backward(x, saved).dx; }, "dx");
  expect_same_for_any_threads([&] { return std::move(layer.backward(x, saved).parameters.wkv_down); }, "dwkv_down");
}

TEST(LatentAttention, CountsWhatItKeeps) {
  const LatentAttention v3({.dtype = DType::bf16,
                            .width = 256,  // 7168 in the model; the cache does not depend on it
                            .heads = 128,
                            .kv_rank = 256,
                            .nope_dim = 128,
                            .rope_dim = 64,
                            .value_dim = 128});
  EXPECT_EQ(v3.bytes_per_token(), 2 * (256 + 64));
  EXPECT_EQ(v3.expanded_bytes_per_token(), 2 * 128 * (128 + 64 + 128));
  EXPECT_EQ(v3.parameter_count(), 128 * 192 * 256 + 320 * 256 + 256 + 128 * 256 * 256 + 256 * 128 * 128);
  EXPECT_NEAR(v3.scale(), 1 / std::sqrt(192.0), 1e-15);
  const LatentAttention yarn(
      {.width = 8,
       .kv_rank = 4,
       .nope_dim = 2,
       .rope_dim = 2,
       .value_dim = 2,
       .rope_scaling = {
           .kind = RopeScaling::Kind::yarn, .factor = 40, .original_length = 4096, .mscale = 1, .mscale_all_dim = 1}});
  const double m = 0.1 * std::log(40.0) + 1;
  EXPECT_NEAR(yarn.scale(), m * m / 2, 1e-15);
}

TEST(LatentAttention, EmptyInputsWork) {
  const LatentAttention layer = make_layer(configs()[0], DType::f32);
  for (const Shape& shape : std::vector<Shape>{{0, 1, 3, 24}, {2, 1, 0, 24}}) {
    const Tensor x(DType::f32, shape);
    LatentAttentionSaved saved;
    EXPECT_EQ(layer.forward(x, {.mask = causal()}, &saved).shape(), shape);
    const LatentAttentionGradients g = layer.backward(x, saved);
    EXPECT_EQ(max_abs(g.parameters.wkv_up), 0);
    LatentCache cache(layer.config(), shape[0], 6);
    EXPECT_EQ(layer.step(x, cache).shape(), shape);
    EXPECT_EQ(layer.prefill(x, cache).shape(), shape);
  }
}

TEST(LatentAttention, RefusesBadArguments) {
  const LatentAttentionConfig good = configs()[0];
  const auto refused = [&](auto&& change) {
    LatentAttentionConfig config = good;
    change(config);
    return error_of([&] { LatentAttention layer(config); });
  };
  EXPECT_EQ(refused([](auto& c) { c.kv_rank = 25; }),
            "latent_attention: kv_rank is 25, expected at most 24 (the width): a rank above it compresses nothing");
  EXPECT_EQ(refused([](auto& c) { c.q_rank = 30; }),
            "latent_attention: q_rank is 30, expected at most 24 (the width): a rank above it compresses nothing");
  EXPECT_EQ(refused([](auto& c) { c.kv_rank = 0; }), "latent_attention: kv_rank is 0, expected at least 1");
  EXPECT_EQ(refused([](auto& c) { c.rope_dim = 3; }),
            "latent_attention: rope_dim is 3, expected an even number (RoPE rotates pairs)");
  EXPECT_EQ(refused([](auto& c) { c.rope_scaling = {.kind = RopeScaling::Kind::yarn}; }),
            "rope: scaling original_length is 0, expected the length the model was trained with");
  EXPECT_NE(refused([](auto& c) { c.heads = std::int64_t{1} << 60; }), "");
  const LatentAttention layer(good);
  const Tensor x(DType::f32, {1, 1, 3, 24}), narrow(DType::f32, {1, 1, 3, 23});
  EXPECT_EQ(error_of([&] { layer.forward(narrow); }),
            "latent_attention: x shape is [1, 1, 3, 23], expected [1, 1, 3, 24]");
  LatentCache cache(layer.config(), 1, 2);
  EXPECT_EQ(error_of([&] { layer.step(x, cache); }),
            "latent_attention: x length is 3, expected at most 2 (a cache of 2 holds 0)");
  EXPECT_EQ(cache.length(), 0);
  EXPECT_EQ(error_of([&] { layer.step(tokens(x, 0, 1), cache, {.mask = causal(Align::first_key)}); }),
            "latent_attention: causal mask of step is aligned to first_key, expected last_key (the new tokens are the "
            "last of the sequence)");
  EXPECT_EQ(error_of([&] { cache.truncate(1); }),
            "LatentCache::truncate: length is 1, expected 0 to 0 (the length so far)");
  EXPECT_NE(error_of([&] { layer.backward(x, LatentAttentionSaved{}); }), "");
}

// What forward saved, with one tensor of another size or dtype.
TEST(LatentAttention, RefusesASavedStateOfAnotherLayer) {
  using Saved = LatentAttentionSaved;
  const std::pair<const char*, Tensor Saved::*> tensors[] = {{"q_down", &Saved::q_down},
                                                             {"q_latent", &Saved::q_latent},
                                                             {"kv_down", &Saved::kv_down},
                                                             {"latent", &Saved::latent},
                                                             {"q", &Saved::q},
                                                             {"k", &Saved::k},
                                                             {"kv_up", &Saved::kv_up},
                                                             {"out", &Saved::out},
                                                             {"lse", &Saved::lse}};
  const LatentAttention layer = make_layer(configs()[0], DType::f32);
  const Tensor x = random_tensor(DType::f32, {2, 1, 3, 24}, 1);
  for (const auto& [name, tensor] : tensors) {
    for (const bool other_dtype : {false, true}) {
      Saved saved;
      layer.forward(x, {}, &saved);
      EXPECT_EQ(error_of([&] { layer.backward(x, saved); }), "");
      Shape shape = (saved.*tensor).shape();
      if (!other_dtype) ++shape[3];
      saved.*tensor = Tensor(other_dtype ? DType::f64 : DType::f32, shape);
      const std::string text = error_of([&] { layer.backward(x, saved); });
      EXPECT_NE(text.find(std::string(name) + (other_dtype ? " dtype is f64" : " shape is")), std::string::npos)
          << name << ": " << text;
    }
  }
}

}  // namespace
}  // namespace attend::test::ops
