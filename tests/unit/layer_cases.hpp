// Small layers that together hold every option of the config, every mask and every score option, with their inputs.
#pragma once

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "attend/multi_head_attention.hpp"
#include "unit/op_testing.hpp"

namespace attend::test::ops {

struct LayerCase {
  std::string name;
  MultiHeadAttentionConfig config;
  std::int64_t B, M, N;  // queries and keys; M == N without a context
  bool cross;
  int index;
};

inline constexpr int kLayerCases = 48;

inline LayerCase layer_case(int index) {
  const std::pair<std::int64_t, std::int64_t> heads[] = {{4, 4}, {4, 2}, {3, 1}};
  const std::optional<RopeStyle> rope[] = {std::nullopt, RopeStyle::half_split, RopeStyle::interleaved};
  LayerCase c;
  c.index = index;
  c.cross = index / 12 % 2 == 1;
  c.B = 1 + index % 2;
  c.M = 3 + index % 3;
  c.N = c.cross ? 2 + index % 4 : c.M;
  MultiHeadAttentionConfig& config = c.config;
  std::tie(config.heads, config.kv_heads) = heads[index / 2 % 3];
  config.width = config.heads * 2;
  config.context_width = c.cross ? 5 : 0;
  config.output_width = index % 4 == 1 ? 3 : 0;
  config.head_dim = index % 4 == 2 ? 4 : 0;
  config.value_dim = index % 5 >= 3 ? 3 : 0;
  config.rope = rope[index % 3];
  config.rope_theta = 100;
  if (index % 4 == 3) config.rope_scaling = {.kind = RopeScaling::Kind::yarn, .factor = 4, .original_length = 16};
  config.qk_norm = index / 3 % 2 == 1;
  config.norm_eps = 1e-3;
  config.value_rank = index / 6 % 2 == 1 ? 2 : 0;
  config.qkv_bias = index / 24 % 2 == 1;
  config.output_bias = index % 5 != 0;
  c.name = "layer case " + std::to_string(index);
  return c;
}

// Mask number `index` over M queries and N keys, both at least 2.
inline Mask layer_mask(int index, std::int64_t M, std::int64_t N) {
  switch (index % 9) {
    case 0:
      return no_mask();
    case 1:
      return causal();
    case 2:
      return causal(Align::first_key);
    case 3:
      return window(1, 1);
    case 4:
      return padding({N - 1});
    case 5:
      return prefix({2});
    case 6:
      return segments({0, 1, M}, {0, 2, N}) & causal();
    case 7:
      return left_padding({1}) & causal();  // the first query may see nothing
    default:
      return blocks(2, 1, 1, (M + 1) / 2, N, std::vector<std::uint8_t>(static_cast<std::size_t>((M + 1) / 2 * N), 1)) &
             window(2, 0);
  }
}

// The layer of a case in a dtype, with parameters, inputs and options.
struct LayerProblem {
  LayerProblem(const LayerCase& c, DType dtype) : layer(with_dtype(c.config, dtype)), cross(c.cross) {
    const auto key = static_cast<std::uint64_t>(100 * (c.index + 1));
    layer.initialise(key);
    const MultiHeadAttentionConfig& config = layer.config();
    if (config.qk_norm) {
      layer.parameters().q_norm = random_tensor(dtype, {1, 1, 1, config.head_dim}, key + 1);
      layer.parameters().k_norm = random_tensor(dtype, {1, 1, 1, config.head_dim}, key + 2);
    }
    x = random_tensor(dtype, {c.B, 1, c.M, config.width}, key + 3);
    if (cross) context = random_tensor(dtype, {c.B, 1, c.N, config.context_width}, key + 4);
    dout = random_tensor(dtype, {c.B, 1, c.M, config.output_width}, key + 5);
    const DType wide = dtype == DType::f64 ? DType::f64 : DType::f32;
    bias = random_tensor(wide, {1, c.index % 2 == 0 ? config.heads : 1, c.M, c.N}, key + 6);
    by_distance = random_tensor(wide, {1, c.index % 2 == 0 ? config.heads : 1, 1, c.M + c.N - 1}, key + 9);
    sinks = random_tensor(wide, {1, config.heads, 1, 1}, key + 7);
    slopes = random_tensor(wide, {1, config.heads, 1, 1}, key + 8);

    options.mask = layer_mask(c.index, c.M, c.N);
    if (c.index % 7 == 3) options.softcap = 1.5;
    if (c.index % 7 == 4) options.scale = 0.7;
    if (c.index % 7 == 5) options.dropout = {0.3, 17};
    if (c.index % 5 == 1) options.bias = bias;
    if (c.index % 5 == 2) options.sinks = sinks;
    if (c.index % 5 == 3) options.alibi_slopes = slopes;
    if (c.index % 5 == 4) options.distance_bias = by_distance;
  }

  static MultiHeadAttentionConfig with_dtype(MultiHeadAttentionConfig config, DType dtype) {
    config.dtype = dtype;
    return config;
  }

  std::optional<View> context_view() const { return cross ? std::optional<View>(context) : std::nullopt; }
  Tensor forward(ForwardWants wants = {}) const {
    return cross ? layer.forward(x, context, options, wants) : layer.forward(x, options, wants);
  }

  MultiHeadAttention layer;
  bool cross;
  Tensor x, context, dout, bias, by_distance, sinks, slopes;
  AttentionOptions options;
};

inline const std::pair<const char*, Tensor MultiHeadAttentionParameters::*> kParameters[] = {
    {"wq", &MultiHeadAttentionParameters::wq},        {"wk", &MultiHeadAttentionParameters::wk},
    {"wv", &MultiHeadAttentionParameters::wv},        {"wv_down", &MultiHeadAttentionParameters::wv_down},
    {"wo", &MultiHeadAttentionParameters::wo},        {"bq", &MultiHeadAttentionParameters::bq},
    {"bk", &MultiHeadAttentionParameters::bk},        {"bv", &MultiHeadAttentionParameters::bv},
    {"bo", &MultiHeadAttentionParameters::bo},        {"q_norm", &MultiHeadAttentionParameters::q_norm},
    {"k_norm", &MultiHeadAttentionParameters::k_norm}};

// Every gradient of `g` with its name; absent ones are empty.
inline std::vector<std::pair<std::string, const Tensor*>> all_gradients(const MultiHeadAttentionGradients& g) {
  std::vector<std::pair<std::string, const Tensor*>> list = {{"x", &g.dx},
                                                             {"context", &g.dcontext},
                                                             {"bias", &g.dbias},
                                                             {"sinks", &g.dsinks},
                                                             {"distance_bias", &g.ddistance_bias}};
  for (const auto& [name, member] : kParameters) list.emplace_back(name, &(g.parameters.*member));
  return list;
}

}  // namespace attend::test::ops
