// Tests of the layer: sizes and parameters, forward against the reference, weights, bad input.
#include "reference/multi_head_attention.hpp"
#include "unit/error_of.hpp"
#include "unit/layer_cases.hpp"

namespace attend::test::ops {
namespace {

// ---- Parameters ----

std::int64_t qkv_count(const MultiHeadAttentionParameters& p) {
  return p.wq.size() + p.wk.size() + p.wv.size() + p.wv_down.size();
}

TEST(LayerParameters, CountsFollowTheFormulas) {
  const MultiHeadAttention full({.width = 512, .heads = 8}), grouped({.width = 512, .heads = 8, .kv_heads = 2});
  EXPECT_EQ(full.parameter_count(), 4 * 512 * 512);
  EXPECT_EQ(2 * qkv_count(grouped.parameters()), qkv_count(full.parameters()));  // GQA 8/2 halves QKV
  const MultiHeadAttention one({.width = 512, .heads = 8, .kv_heads = 1});
  EXPECT_EQ(qkv_count(one.parameters()), 512 * 512 + 2 * 64 * 512);
  const MultiHeadAttention factored({.width = 512, .heads = 8, .value_rank = 64});
  EXPECT_EQ(qkv_count(factored.parameters()), 2 * 512 * 512 + 2 * 64 * 512);

  const MultiHeadAttention all({.width = 10,
                                .context_width = 6,
                                .output_width = 7,
                                .heads = 4,
                                .kv_heads = 2,
                                .head_dim = 8,
                                .value_dim = 3,
                                .value_rank = 5,
                                .qkv_bias = true,
                                .output_bias = true,
                                .qk_norm = true});
  EXPECT_EQ(all.parameter_count(), 32 * 10 + 16 * 6 + 6 * 5 + 5 * 6 + 7 * 12 + 32 + 16 + 6 + 7 + 8 + 8);
}

TEST(LayerParameters, ConfigComesBackWithTheZerosFilledIn) {
  const MultiHeadAttention layer({.width = 12, .heads = 3});
  const MultiHeadAttentionConfig& c = layer.config();
  EXPECT_EQ(c.context_width, 12);
  EXPECT_EQ(c.output_width, 12);
  EXPECT_EQ(c.kv_heads, 3);
  EXPECT_EQ(c.head_dim, 4);
  EXPECT_EQ(c.value_dim, 4);
}

TEST(LayerParameters, StartAsZerosAndOnes) {
  const MultiHeadAttention layer({.dtype = DType::bf16, .width = 8, .heads = 2, .qkv_bias = true, .qk_norm = true});
  for (const auto& [name, member] : kParameters) {
    const Tensor& tensor = layer.parameters().*member;
    const bool norm = std::string(name).ends_with("norm");
    if (tensor.empty()) continue;
    EXPECT_EQ(tensor.dtype(), DType::bf16) << name;
    for_each_element(tensor.shape(), [&](auto b, auto h, auto i, auto d) {
      EXPECT_EQ(load(tensor, b, h, i, d), norm ? 1 : 0) << name;
    });
  }
  EXPECT_TRUE(layer.parameters().wv_down.empty());
  EXPECT_TRUE(layer.parameters().bo.empty());
}

TEST(LayerParameters, InitialiseIsUniformAndRepeatable) {
  const MultiHeadAttentionConfig config{
      .width = 100, .heads = 10, .value_rank = 25, .qkv_bias = true, .output_bias = true, .qk_norm = true};
  MultiHeadAttention a(config), b(config), c(config);
  a.initialise(7), b.initialise(7), c.initialise(8);
  for (const auto& [name, member] : kParameters) {
    const Tensor& tensor = a.parameters().*member;
    EXPECT_TRUE(same_bits(tensor, b.parameters().*member)) << name;
    if (std::string(name).ends_with("norm")) continue;
    EXPECT_FALSE(same_bits(tensor, c.parameters().*member)) << name;
    const bool by_rank = std::string(name) == "wv" || std::string(name) == "bv";
    const double bound = by_rank ? 0.2 : 0.1;  // 1 / sqrt(inputs)
    EXPECT_LE(max_abs(tensor), bound) << name;
    EXPECT_GT(max_abs(tensor), 0.9 * bound) << name;
    const auto n = static_cast<double>(tensor.size());
    Tensor ones(DType::f32, tensor.shape());
    for (std::int64_t i = 0; i < ones.size(); ++i) ones.data<float>()[i] = 1;
    EXPECT_LE(std::abs(dot(tensor, ones)) / n, 3 * bound / std::sqrt(3 * n)) << name;               // mean 0
    EXPECT_NEAR(dot(tensor, tensor) / n, bound * bound / 3, bound * bound / std::sqrt(n)) << name;  // of a uniform
  }
  EXPECT_NE(a.parameters().wq.data<float>()[0], a.parameters().wk.data<float>()[0]);  // streams of their own

  MultiHeadAttention plain({.width = 100, .heads = 10});
  plain.initialise(7);  // what is not there does not change the rest
  EXPECT_TRUE(same_bits(plain.parameters().wq, a.parameters().wq));
  EXPECT_TRUE(same_bits(plain.parameters().wo, a.parameters().wo));
}

TEST(LayerParameters, RefusesSizesThatDoNotFit) {
  const auto text = [](const MultiHeadAttentionConfig& config) {
    return error_of([&] { MultiHeadAttention layer(config); });
  };
  const std::string op = "multi_head_attention: ";
  const std::int64_t huge = std::int64_t{1} << 40;
  EXPECT_EQ(text({}), op + "width is 0, expected at least 1");
  EXPECT_EQ(text({.width = -8}), op + "width is -8, expected at least 1");
  EXPECT_EQ(text({.width = 8, .context_width = -1}), op + "context_width is -1, expected at least 0");
  EXPECT_EQ(text({.width = 8, .output_width = -1}), op + "output_width is -1, expected at least 0");
  EXPECT_EQ(text({.width = 8, .heads = 0}), op + "heads is 0, expected at least 1");
  EXPECT_EQ(text({.width = 8, .heads = 2, .kv_heads = -2}), op + "kv_heads is -2, expected at least 0");
  EXPECT_EQ(text({.width = 8, .head_dim = -1}), op + "head_dim is -1, expected at least 0");
  EXPECT_EQ(text({.width = 8, .value_dim = -1}), op + "value_dim is -1, expected at least 0");
  EXPECT_EQ(text({.width = 8, .value_rank = -1}), op + "value_rank is -1, expected at least 0");
  EXPECT_EQ(text({.width = 12, .heads = 6, .kv_heads = 4}), op + "heads is 6, expected a multiple of kv_heads, 4");
  EXPECT_EQ(text({.width = 12, .heads = 2, .kv_heads = 4}), op + "heads is 2, expected a multiple of kv_heads, 4");
  EXPECT_EQ(text({.width = 10, .heads = 4}), op + "width is 10, expected a multiple of heads, 4 (or a head_dim)");
  EXPECT_EQ(text({.width = 15, .heads = 3, .rope = RopeStyle::half_split}),
            op + "head_dim is 5, expected an even number (RoPE rotates pairs)");
  EXPECT_EQ(text({.width = 8, .norm_eps = -1}), op + "norm_eps is -1.000000, expected a finite number from 0 up");
  EXPECT_EQ(text({.width = 8, .rope = RopeStyle::half_split, .rope_theta = 0}),
            op + "rope_theta is 0.000000, expected a finite number above 0");
  EXPECT_NE(text({.dtype = static_cast<DType>(9), .width = 8}).find("dtype is 9"), std::string::npos);
  EXPECT_NE(text({.width = 8, .rope = static_cast<RopeStyle>(9)}).find("rope is 9"), std::string::npos);
  EXPECT_NE(text({.width = huge, .heads = huge, .head_dim = huge}).find("heads x head_dim is"), std::string::npos);
  EXPECT_NE(text({.width = huge, .heads = 1}).find("bytes of wq is"), std::string::npos);
  EXPECT_NE(text({.width = 8, .output_width = huge, .heads = 8, .value_dim = huge}).find("bytes of wo is"),
            std::string::npos);
}

// ---- Forward ----

// A few roundings of values no larger than the largest; in f32 the sums themselves are rounded as well.
TEST(LayerForward, MatchesTheReferenceAtARealSize) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const bool cross : {false, true}) {
      MultiHeadAttention layer({.dtype = dtype,
                                .width = 96,
                                .context_width = cross ? 64 : 0,
                                .heads = 6,
                                .kv_heads = 2,
                                .value_dim = 24,
                                .qkv_bias = true,
                                .output_bias = true,
                                .qk_norm = true,
                                .rope = RopeStyle::half_split});
      layer.initialise(1);
      const Tensor x = random_tensor(dtype, {2, 1, 70, 96}, 2), context = random_tensor(dtype, {2, 1, 131, 64}, 3);
      const std::optional<View> source = cross ? std::optional<View>(context) : std::nullopt;
      const AttentionOptions options{.mask = cross ? padding({131, 90}) : causal()};
      const Tensor y = cross ? layer.forward(x, context, options) : layer.forward(x, options);
      const Tensor truth = reference::multi_head_attention(layer.config(), layer.parameters(), x, source, options);
      const double allowed = (dtype == DType::f32 ? 12 : 6) * rounding(dtype, max_abs(truth));
      expect_within(y, truth, [&](auto, auto, auto, auto) { return allowed; }, name(dtype));
    }
  }
}

TEST(LayerForward, TakesStridedInputs) {
  MultiHeadAttention layer({.width = 16, .heads = 4, .rope = RopeStyle::interleaved});
  layer.initialise(4);
  const Tensor x = random_tensor(DType::f32, {2, 1, 9, 16}, 5), dout = random_tensor(DType::f32, {2, 1, 9, 16}, 6);
  const Strided odd_x(x, MemoryLayout::odd), odd_dout(dout, MemoryLayout::odd);
  MultiHeadAttentionSaved saved, odd_saved;
  EXPECT_TRUE(same_bits(layer.forward(odd_x.view, {}, {.saved = &odd_saved}), layer.forward(x, {}, {.saved = &saved})));
  EXPECT_TRUE(same_bits(odd_saved.x, x));
  const MultiHeadAttentionGradients a = layer.backward(odd_dout.view, odd_saved), b = layer.backward(dout, saved);
  EXPECT_TRUE(same_bits(a.dx, b.dx));
  EXPECT_TRUE(same_bits(a.parameters.wo, b.parameters.wo));
}

TEST(LayerForward, GivesTheWeights) {
  MultiHeadAttention layer({.width = 16, .context_width = 6, .heads = 4, .kv_heads = 2});
  layer.initialise(7);
  const Tensor x = random_tensor(DType::f32, {2, 1, 5, 16}, 8), context = random_tensor(DType::f32, {2, 1, 7, 6}, 9);
  Tensor weights;
  const AttentionOptions options{.mask = padding({7, 4})};
  const Tensor y = layer.forward(x, context, options, {.weights = &weights});
  EXPECT_TRUE(same_bits(y, layer.forward(x, context, options)));
  ASSERT_EQ(weights.shape(), (Shape{2, 4, 5, 7}));
  for_each_element({2, 4, 5, 1}, [&](auto b, auto h, auto i, auto) {
    double sum = 0;
    for (std::int64_t j = 0; j < 7; ++j) sum += load(weights, b, h, i, j);
    EXPECT_NEAR(sum, 1, 1e-6);
    EXPECT_EQ(load(weights, 1, h, i, 5), 0);  // padding
  });
}

TEST(LayerForward, RowsDoNotDependOnTheBatchNorOnTheThreads) {
  MultiHeadAttention layer({.width = 32, .heads = 4, .kv_heads = 2, .qk_norm = true, .rope = RopeStyle::half_split});
  layer.initialise(10);
  const Tensor x = random_tensor(DType::f32, {5, 1, 40, 32}, 11);
  const auto forward = [&] { return layer.forward(x, {.mask = causal()}); };
  expect_same_for_any_threads(forward, "forward");
  const Tensor all = forward();
  const Tensor alone = layer.forward(view_of(x.data<float>() + 3 * 40 * 32, {1, 1, 40, 32}), {.mask = causal()});
  EXPECT_EQ(std::memcmp(alone.data<float>(), all.data<float>() + 3 * 40 * 32, 40 * 32 * sizeof(float)), 0);
}

TEST(LayerForward, EmptySizesWork) {
  MultiHeadAttention layer({.width = 8, .heads = 2, .output_bias = true, .qk_norm = true});
  layer.initialise(12);
  for (const Shape& shape : {Shape{0, 1, 3, 8}, Shape{2, 1, 0, 8}}) {
    const Tensor x(DType::f32, shape);
    MultiHeadAttentionSaved saved;
    EXPECT_EQ(layer.forward(x, {}, {.saved = &saved}).shape(), shape);
    const MultiHeadAttentionGradients g = layer.backward(x, saved);
    EXPECT_EQ(g.dx.shape(), shape);
    for (const auto& [name, member] : kParameters) {
      if ((g.parameters.*member).empty()) continue;
      EXPECT_EQ(max_abs(g.parameters.*member), 0) << name;
    }
  }
  const Tensor x = random_tensor(DType::f32, {1, 1, 3, 8}, 13), nothing(DType::f32, {1, 1, 0, 8});
  MultiHeadAttentionSaved saved;
  const Tensor y = layer.forward(x, nothing, {}, {.saved = &saved});  // no keys: attention gives zeros
  for_each_element(y.shape(), [&](auto b, auto h, auto i, auto d) {
    EXPECT_EQ(load(y, b, h, i, d), load(layer.parameters().bo, 0, 0, 0, d));
  });
  const MultiHeadAttentionGradients g = layer.backward(x, saved);
  EXPECT_EQ(max_abs(g.dx), 0);
  EXPECT_EQ(g.dcontext.shape(), nothing.shape());
}

TEST(LayerForward, RefusesBadArguments) {
  const std::string op = "multi_head_attention: ";
  MultiHeadAttention layer({.width = 8, .heads = 2}), crossing({.width = 8, .context_width = 6, .heads = 2});
  const Tensor x(DType::f32, {2, 1, 3, 8}), wide(DType::f32, {2, 1, 3, 9}), headed(DType::f32, {2, 2, 3, 8});
  const Tensor half(DType::f16, {2, 1, 3, 8}), context(DType::f32, {1, 1, 4, 6});
  EXPECT_EQ(error_of([&] { layer.forward(wide); }), op + "x shape is [2, 1, 3, 9], expected [2, 1, 3, 8]");
  EXPECT_EQ(error_of([&] { layer.forward(headed); }), op + "x shape is [2, 2, 3, 8], expected [2, 1, 3, 8]");
  EXPECT_EQ(error_of([&] { layer.forward(half); }), op + "x dtype is f16, expected f32");
  EXPECT_EQ(error_of([&] { crossing.forward(x); }),
            op + "context_width is 6, expected 8 (K and V come from x without a context)");
  EXPECT_EQ(error_of([&] { crossing.forward(x, x); }), op + "context shape is [2, 1, 3, 8], expected [2, 1, 3, 6]");
  EXPECT_EQ(error_of([&] { crossing.forward(x, context); }), op + "context batch is 1, expected 2 (x batch)");
  View null = x;
  null.data = nullptr;
  EXPECT_NE(error_of([&] { layer.forward(null); }).find(op + "x data is null"), std::string::npos);

  Tensor weights;
  MultiHeadAttentionSaved saved;
  const Tensor bias(DType::f32, {1, 1, 3, 77});
  EXPECT_NE(error_of([&] { layer.forward(x, {.bias = bias.view()}, {.saved = &saved, .weights = &weights}); }), "");
  EXPECT_TRUE(saved.x.empty() && weights.empty());  // nothing is filled by a call that failed

  layer.parameters().wk = Tensor(DType::f32, {1, 1, 8, 7});
  EXPECT_EQ(error_of([&] { layer.forward(x); }), op + "wk shape is [1, 1, 8, 7], expected [1, 1, 8, 8]");
  layer.parameters().wk = Tensor(DType::f16, {1, 1, 8, 8});
  EXPECT_EQ(error_of([&] { layer.forward(x); }), op + "wk dtype is f16, expected f32");
}

// What forward saved, with one tensor of another size or dtype.
TEST(LayerBackward, RefusesASavedStateOfAnotherLayer) {
  using Saved = MultiHeadAttentionSaved;
  const std::pair<const char*, Tensor Saved::*> tensors[] = {{"context", &Saved::context},
                                                             {"q_raw", &Saved::q_raw},
                                                             {"k_raw", &Saved::k_raw},
                                                             {"q", &Saved::q},
                                                             {"k", &Saved::k},
                                                             {"v", &Saved::v},
                                                             {"v_down", &Saved::v_down},
                                                             {"out", &Saved::out},
                                                             {"lse", &Saved::lse}};
  const MultiHeadAttention layer({.width = 8, .context_width = 6, .heads = 2, .value_rank = 2, .qk_norm = true});
  const Tensor x = random_tensor(DType::f32, {2, 1, 3, 8}, 1), context = random_tensor(DType::f32, {2, 1, 4, 6}, 2);
  for (const auto& [name, tensor] : tensors) {
    for (const bool other_dtype : {false, true}) {
      Saved saved;
      layer.forward(x, context, {}, {.saved = &saved});
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
