// Tests of the transformer block: its definition, blocks of queries against the whole, gradients.
#include "attend/transformer_block.hpp"

#include <functional>

#include "attend/linear.hpp"
#include "attend/patterns.hpp"
#include "attend/rms_norm.hpp"
#include "reference/transformer_block.hpp"
#include "unit/error_of.hpp"
#include "unit/op_testing.hpp"

namespace attend::test::ops {
namespace {

struct BlockCase {
  std::string name;
  TransformerBlockConfig config;
};

std::vector<BlockCase> configs(DType dtype) {
  const auto with = [&](MultiHeadAttentionConfig attention, FeedForward kind, std::int64_t hidden) {
    attention.dtype = dtype;
    return TransformerBlockConfig{.attention = attention, .feed_forward = kind, .hidden = hidden, .norm_eps = 1e-3};
  };
  return {{"swiglu", with({.width = 16,
                           .heads = 4,
                           .kv_heads = 2,
                           .rope = RopeStyle::half_split,
                           .rope_scaling = {.kind = RopeScaling::Kind::linear, .factor = 2}},
                          FeedForward::swiglu, 24)},
          {"gelu", with({.width = 12,
                         .heads = 3,
                         .kv_heads = 1,
                         .head_dim = 6,
                         .value_dim = 5,
                         .qkv_bias = true,
                         .output_bias = true,
                         .qk_norm = true,
                         .rope = RopeStyle::interleaved},
                        FeedForward::gelu, 0)},
          {"relu", with({.width = 8, .heads = 2, .value_rank = 3, .qkv_bias = true}, FeedForward::relu, 20)}};
}

// A layer with every parameter drawn at random.
TransformerBlock make_block(const TransformerBlockConfig& config, std::uint64_t seed) {
  TransformerBlock layer(config);
  layer.initialise(seed);
  const auto redraw = [&](Tensor& tensor) {
    if (!tensor.empty()) tensor = random_tensor(tensor.dtype(), tensor.shape(), ++seed, 0.5);
  };
  auto& a = layer.attention().parameters();
  for (Tensor* tensor : {&a.bq, &a.bk, &a.bv, &a.bo, &a.q_norm, &a.k_norm}) redraw(*tensor);
  redraw(layer.parameters().norm1);
  redraw(layer.parameters().norm2);
  return layer;
}

struct OptionsCase {
  std::string name;
  AttentionOptions options;
};

constexpr std::int64_t kB = 2, kM = 150;

// Every mask and score option for kB sequences of kM tokens; `heads` query heads.
class AllOptions {
 public:
  AllOptions(std::int64_t heads, DType dtype)
      : bias_(random_tensor(dtype, {1, heads, kM, kM}, 1)),
        key_bias_(random_tensor(DType::f32, {kB, 1, 1, kM}, 2)),
        slopes_(random_tensor(DType::f32, {1, heads, 1, 1}, 3, 0.1)),
        sinks_(random_tensor(DType::f32, {1, heads, 1, 1}, 4)) {
    dense_.resize(static_cast<std::size_t>(heads * kM * kM));
    for (std::size_t n = 0; n < dense_.size(); ++n) dense_[n] = uniform(5, n) < 0.5;
    std::vector<std::uint8_t> bits(static_cast<std::size_t>(heads * 15 * 6));
    for (std::size_t n = 0; n < bits.size(); ++n) bits[n] = uniform(6, n) < 0.5;
    const std::vector<std::uint8_t> coarse(bits.begin(), bits.begin() + 4 * 3);
    const Mask sparse = blocks(10, 25, heads, 15, 6, bits), rough = blocks(43, 64, 1, 4, 3, coarse);
    const Mask documents = segments({0, 3, 3, 41, 120});
    const auto add = [&](const char* name, AttentionOptions options) { list.push_back({name, std::move(options)}); };
    add("none", {});
    add("causal", {.mask = causal()});
    add("causal from the first key", {.mask = causal(Align::first_key)});
    add("causal at", {.mask = causal(Diagonal::at({-3, 20}))});
    add("window", {.mask = window(5, 2)});
    add("window from the first key", {.mask = window(70, 0, Align::first_key)});
    add("padding", {.mask = padding({150, 33}) & causal()});
    add("left padding", {.mask = left_padding({0, 70}) & causal()});
    add("prefix", {.mask = prefix({40, 90})});
    add("documents", {.mask = documents});
    add("causal documents", {.mask = documents & causal()});
    add("documents from the first key", {.mask = documents & window(9, 1, Align::first_key)});
    add("sinks and a window", {.mask = streaming(3, 20)});
    add("strided", {.mask = strided(12)});
    add("fixed", {.mask = fixed(16, 2)});
    add("Longformer, dilated", {.mask = longformer(5, 3, {0, 77})});
    add("a union with blocks",
        {.mask = (window(9, kUnlimited) | bigbird(150, 150, {.block = 16, .random_blocks = 2})) & causal()});
    add("documents of other lengths", {.mask = segments({0, 30, 80, 150}, {0, 60, 70, 100}) & causal()});
    add("documents with a prefix", {.mask = segments({0, 70, 150}) & prefix({5, 11})});
    add("blocks", {.mask = sparse});
    add("blocks of two sizes", {.mask = sparse & rough & causal()});
    add("dense", {.mask = dense(dense_.data(), {1, heads, kM, kM})});
    add("dense for keys", {.mask = dense(dense_.data(), {1, 1, 1, kM}, {0, 0, 0, 1})});
    add("bias", {.mask = causal(), .bias = bias_});
    add("bias of keys", {.softcap = 2.0, .bias = key_bias_});
    add("ALiBi", {.mask = causal(), .alibi_slopes = slopes_});
    add("ALiBi in documents", {.mask = documents & causal(), .alibi_slopes = slopes_});
    add("ALiBi from the first key", {.alibi_slopes = slopes_, .alibi_diagonal = Align::first_key});
    add("sinks", {.mask = causal(), .scale = 0.5, .sinks = sinks_});
    add("rule", {.rule = ScoreRule(
                     [](auto tile) {
                       for (std::int64_t r = 0; r < tile.rows; ++r)
                         for (std::int64_t c = 0; c < tile.cols; ++c)
                           tile(r, c) *= (tile.first_row + r) % 7 == (tile.first_col + c) % 5 ? 2.0F : 1.0F;
                     },
                     [](auto, auto grad) {
                       for (std::int64_t r = 0; r < grad.rows; ++r)
                         for (std::int64_t c = 0; c < grad.cols; ++c)
                           grad(r, c) *= (grad.first_row + r) % 7 == (grad.first_col + c) % 5 ? 2.0F : 1.0F;
                     })});
  }

  std::vector<OptionsCase> list;

 private:
  Tensor bias_, key_bias_, slopes_, sinks_;
  std::vector<std::uint8_t> dense_;
};

TEST(TransformerBlock, AttentionHalfIsTheLayerToTheBit) {
  for (const DType dtype : kFloats) {
    for (const BlockCase& c : configs(dtype)) {
      TransformerBlock layer = make_block(c.config, 1);
      Tensor& down = layer.parameters().down;
      down = Tensor(dtype, down.shape());  // z = y
      const std::int64_t width = c.config.attention.width;
      const Tensor x = random_tensor(dtype, {kB, 1, 70, width}, 2);
      Tensor norm(dtype, x.shape()), expected(dtype, x.shape());
      rms_norm(x, layer.parameters().norm1, norm, 1e-3);
      const Tensor y = layer.attention().forward(norm, {.mask = causal()});
      for_each_element(x.shape(), [&](auto b, auto h, auto i, auto d) {
        store(expected, b, h, i, d, load(x, b, h, i, d) + load(y, b, h, i, d));
      });
      for (const std::int64_t block : {0, 1, 9, 64, 70, 200})
        EXPECT_TRUE(same_bits(layer.forward(x, {.mask = causal()}, {block}), expected)) << c.name << " " << block;
    }
  }
}

TEST(TransformerBlock, BlocksOfQueriesGiveTheBitsOfTheWhole) {
  for (const DType dtype : kFloats) {
    for (const BlockCase& c : configs(dtype)) {
      const TransformerBlock layer = make_block(c.config, 3);
      const Tensor x = random_tensor(dtype, {kB, 1, kM, c.config.attention.width}, 4);
      const AllOptions all(c.config.attention.heads, dtype);
      for (const OptionsCase& o : all.list) {
        const Tensor whole = layer.forward(x, o.options);
        for (const std::int64_t block : {7, 64, 149})
          EXPECT_TRUE(same_bits(layer.forward(x, o.options, {block}), whole))
              << name(dtype) << " " << c.name << ", " << o.name << ", blocks of " << block;
      }
    }
  }
}

std::vector<std::pair<std::string, const Tensor*>> gradients_of(const TransformerBlockGradients& g) {
  return {{"x", &g.dx},
          {"bias", &g.dbias},
          {"sinks", &g.dsinks},
          {"norm1", &g.parameters.norm1},
          {"norm2", &g.parameters.norm2},
          {"gate", &g.parameters.gate},
          {"up", &g.parameters.up},
          {"down", &g.parameters.down},
          {"wq", &g.attention.wq},
          {"wk", &g.attention.wk},
          {"wv", &g.attention.wv},
          {"wv_down", &g.attention.wv_down},
          {"wo", &g.attention.wo},
          {"bq", &g.attention.bq},
          {"bk", &g.attention.bk},
          {"bv", &g.attention.bv},
          {"bo", &g.attention.bo},
          {"q_norm", &g.attention.q_norm},
          {"k_norm", &g.attention.k_norm}};
}

// Errors are measured by the largest element: every element of a gradient is a sum over the same chain of roundings.
// The gradients of what makes the scores are sums that cancel where a query sees many keys, and lose some digits more.
TEST(TransformerBlock, MatchesTheReference) {
  const std::string of_scores = "wq wk bq bk q_norm k_norm";
  for (const DType dtype : kFloats) {
    for (const BlockCase& c : configs(dtype)) {
      const TransformerBlock layer = make_block(c.config, 5);
      const Shape shape = {kB, 1, kM, c.config.attention.width};
      const Tensor x = random_tensor(dtype, shape, 6), dout = random_tensor(dtype, shape, 7);
      const AllOptions all(c.config.attention.heads, dtype);
      // Every option with one config; every config once.
      for (std::size_t n = c.config.feed_forward == FeedForward::swiglu ? 0
                           : c.name == "gelu"                           ? 1
                                                                        : 2;
           n < all.list.size(); n += dtype == DType::f32 ? 3 : 12) {
        const OptionsCase& o = all.list[n];
        const auto& attention = layer.attention().parameters();
        const Tensor z = reference::transformer_block(layer.config(), attention, layer.parameters(), x, o.options);
        const auto expected =
            reference::transformer_block_backward(layer.config(), attention, layer.parameters(), dout, x, o.options);
        const auto wanted = gradients_of(expected);
        for (const std::int64_t block : {0, 40}) {
          const std::string what =
              std::string(name(dtype)) + " " + c.name + ", " + o.name + ", block " + std::to_string(block) + ", ";
          const auto check = [&](const View& got, const View& truth, double size, const std::string& of) {
            const double roundings = of_scores.find(of) == std::string::npos ? 64 : 160;
            const double allowed = roundings * rounding(dtype, size);
            expect_within(got, truth, [&](auto, auto, auto, auto) { return allowed; }, what + of);
          };
          check(layer.forward(x, o.options, {block}), z, max_abs(z), "z");
          const TransformerBlockGradients g = layer.backward(dout, x, o.options, {block});
          const auto got = gradients_of(g);
          for (std::size_t t = 0; t < got.size(); ++t) {
            const Tensor &gradient = *got[t].second, &truth = *wanted[t].second;
            ASSERT_EQ(gradient.empty(), truth.empty()) << got[t].first;
            if (gradient.empty()) continue;
            const bool of_options = got[t].first == "bias" || got[t].first == "sinks";
            EXPECT_EQ(gradient.dtype(), of_options ? DType::f32 : dtype) << got[t].first;
            // Without RoPE a bias of the keys moves all scores of a query alike: its gradient is the difference of
            // terms as large as those of wk.
            const double size = got[t].first == "bk" ? max_abs(expected.attention.wk) : 0;
            check(gradient, truth, std::fmax(size, max_abs(truth)), got[t].first);
          }
        }
      }
    }
  }
}

TEST(TransformerBlock, GradientsByCentralDifferences) {
  for (const BlockCase& c : configs(DType::f64)) {
    TransformerBlock layer = make_block(c.config, 8);
    const Shape shape = {2, 1, 4, c.config.attention.width};
    Tensor x = random_tensor(DType::f64, shape, 9);
    const Tensor dout = random_tensor(DType::f64, shape, 10);
    const AttentionOptions options{.mask = causal()};
    const TransformerBlockGradients g = layer.backward(dout, x, options, {2});
    const auto loss = [&] { return dot(layer.forward(x, options), dout); };
    expect_gradient(g.dx, x, loss, "x");
    auto& p = layer.parameters();
    auto& a = layer.attention().parameters();
    expect_gradient(g.parameters.norm1, p.norm1, loss, "norm1");
    expect_gradient(g.parameters.norm2, p.norm2, loss, "norm2");
    if (!p.gate.empty()) expect_gradient(g.parameters.gate, p.gate, loss, "gate");
    expect_gradient(g.parameters.up, p.up, loss, "up");
    expect_gradient(g.parameters.down, p.down, loss, "down");
    expect_gradient(g.attention.wq, a.wq, loss, "wq");
    expect_gradient(g.attention.wk, a.wk, loss, "wk");
    expect_gradient(g.attention.wo, a.wo, loss, "wo");
    if (!a.q_norm.empty()) expect_gradient(g.attention.q_norm, a.q_norm, loss, "q_norm");
    if (!a.bv.empty()) expect_gradient(g.attention.bv, a.bv, loss, "bv");
  }
}

TEST(TransformerBlock, SameBitsForAnyThreads) {
  const TransformerBlock layer =
      make_block({.attention = {.width = 32, .heads = 4, .kv_heads = 2, .rope = RopeStyle::half_split}}, 11);
  const Tensor x = random_tensor(DType::f32, {2, 1, 300, 32}, 12), dout = random_tensor(DType::f32, x.shape(), 13);
  const AttentionOptions options{.mask = causal()};
  expect_same_for_any_threads([&] { return layer.forward(x, options, {100}); }, "forward");
  expect_same_for_any_threads([&] { return layer.backward(dout, x, options, {100}).dx; }, "dx");
  expect_same_for_any_threads([&] { return std::move(layer.backward(dout, x, options, {100}).attention.wk); }, "wk");
  expect_same_for_any_threads([&] { return std::move(layer.backward(dout, x, options, {100}).parameters.up); }, "up");
}

TEST(TransformerBlock, StridedAndEmptyInputs) {
  for (const BlockCase& c : configs(DType::f32)) {
    const TransformerBlock layer = make_block(c.config, 14);
    const std::int64_t width = c.config.attention.width;
    const Tensor x = random_tensor(DType::f32, {2, 1, 33, width}, 15), dout = random_tensor(DType::f32, x.shape(), 16);
    const Strided odd(x, MemoryLayout::odd), odd_dout(dout, MemoryLayout::odd);
    EXPECT_TRUE(same_bits(layer.forward(odd.view, {}, {10}), layer.forward(x)));
    EXPECT_TRUE(same_bits(layer.backward(odd_dout.view, odd.view, {}, {10}).dx, layer.backward(dout, x, {}, {10}).dx));
    for (const Shape& shape : {Shape{0, 1, 5, width}, Shape{2, 1, 0, width}}) {
      const Tensor none(DType::f32, shape);
      EXPECT_EQ(layer.forward(none, {}, {3}).shape(), shape);
      const TransformerBlockGradients g = layer.backward(none, none, {}, {3});
      EXPECT_EQ(g.dx.shape(), shape);
      EXPECT_EQ(max_abs(g.parameters.up) + max_abs(g.attention.wq), 0);
    }
  }
}

TEST(TransformerBlock, BadArgumentsSayWhatAndWhy) {
  const TransformerBlock layer({.attention = {.width = 8, .heads = 2}});
  EXPECT_EQ(layer.config().hidden, 32);
  EXPECT_EQ(layer.parameter_count(), 4 * 64 + 3 * 32 * 8 + 16);
  const Tensor x(DType::f32, {1, 1, 5, 8});
  EXPECT_EQ(error_of([&] { layer.forward(Tensor(DType::f32, {1, 1, 5, 7})); }),
            "transformer_block: x shape is [1, 1, 5, 7], expected [1, 1, 5, 8]");
  EXPECT_EQ(error_of([&] { layer.forward(x, {}, {-1}); }), "transformer_block: block is -1, expected 0 (all) or more");
  EXPECT_EQ(error_of([&] { layer.forward(x, {.dropout = {0.1, 1}}, {2}); }),
            "transformer_block: dropout is asked for with blocks of queries, expected block 0 (the kept set counts "
            "queries from the start)");
  EXPECT_EQ(error_of([&] { layer.forward(x, {.dropout = {0.1, 1}}); }), "");
  EXPECT_EQ(error_of([&] { layer.forward(x, {.mask = padding({6})}, {2}); }),
            "mask: padding lengths[0] is 6, expected 0 to 5 (keys)");
  EXPECT_EQ(error_of([&] { layer.backward(x, Tensor(DType::f32, {1, 1, 4, 8})); }),
            "transformer_block: dout shape is [1, 1, 5, 8], expected [1, 1, 4, 8]");
  EXPECT_EQ(error_of([&] { layer.backward(x, x, {.rule = ScoreRule([](auto) {})}, {2}); }),
            "transformer_block: the score rule has no gradient; give ScoreRule a backward callable");
  EXPECT_EQ(error_of([] { TransformerBlock({.attention = {.width = 8, .output_width = 4, .heads = 2}}); }),
            "transformer_block: attention.output_width is 4, expected 8 (attention.width)");
  EXPECT_EQ(error_of([] { TransformerBlock({.attention = {.width = 8, .heads = 2}, .hidden = -2}); }),
            "transformer_block: hidden is -2, expected at least 0");
  EXPECT_EQ(error_of([] {
              TransformerBlock({.attention = {.width = 8, .heads = 2}, .feed_forward = static_cast<FeedForward>(5)});
            }),
            "transformer_block: feed_forward is 5, expected swiglu, gelu or relu");
}

}  // namespace
}  // namespace attend::test::ops
