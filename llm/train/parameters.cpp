// Lays out the parameters of a model in training.
#include "llm/train/parameters.hpp"

#include <cmath>
#include <utility>

#include "base/elements.hpp"
#include "base/random.hpp"
#include "base/threads.hpp"

namespace attend::llm {
namespace {

constexpr double kSpread = 0.02;     // of GPT-2, Llama and MiniMind alike
constexpr std::int64_t kAlign = 16;  // every parameter begins on a cache line

}  // namespace

std::size_t ParameterLayout::add(std::string name, std::int64_t rows, std::int64_t cols, double spread, bool matrix) {
  all_.push_back({std::move(name), rows, cols, count_, matrix, spread, false});
  count_ += rows * cols;
  return all_.size() - 1;
}

std::size_t ParameterLayout::add_ones(std::string name, std::int64_t cols) {
  count_ = (count_ + kAlign - 1) / kAlign * kAlign;
  const std::size_t place = add(std::move(name), 1, cols, 0, false);
  all_[place].ones = true;
  return place;
}

NormPlaces ParameterLayout::add_norm(const ModelConfig& config, const std::string& name) {
  NormPlaces places;
  places.weight = add_ones(name + ".weight", config.hidden);
  if (config.norm == NormKind::layer) places.bias = add(name + ".bias", 1, config.hidden, 0, false);
  return places;
}

LinearPlaces ParameterLayout::add_linear(const std::vector<std::pair<std::string, std::int64_t>>& outputs,
                                         std::int64_t inputs, bool bias, double spread) {
  count_ = (count_ + kAlign - 1) / kAlign * kAlign;
  LinearPlaces places;
  for (const auto& [name, rows] : outputs) {
    const std::size_t place = add(name + ".weight", rows, inputs, spread, true);
    if (!places.weight) places.weight = place;
  }
  if (!bias) return places;
  for (const auto& [name, rows] : outputs) {
    const std::size_t place = add(name + ".bias", 1, rows, 0, false);
    if (!places.bias) places.bias = place;
  }
  return places;
}

FeedForwardPlaces ParameterLayout::add_feed_forward(const ModelConfig& config, const std::string& name,
                                                    std::int64_t width, bool bias) {
  std::vector<std::pair<std::string, std::int64_t>> in;
  if (config.gated) in.emplace_back(name + ".gate_proj", width);
  in.emplace_back(name + ".up_proj", width);
  FeedForwardPlaces places;
  places.in = add_linear(in, config.hidden, bias, kSpread);
  const double deep = kSpread / std::sqrt(2.0 * static_cast<double>(config.layers));
  places.down = add_linear({{name + ".down_proj", config.hidden}}, width, bias, deep);
  return places;
}

LayerPlaces ParameterLayout::add_layer(const ModelConfig& c, std::int64_t n) {
  const std::string name = "model.layers." + std::to_string(n) + ".";
  const double deep = kSpread / std::sqrt(2.0 * static_cast<double>(c.layers));  // of what adds to the residual
  LayerPlaces l;
  l.attention_norm = add_norm(c, name + "input_layernorm");
  l.qkv = add_linear({{name + "self_attn.q_proj", c.query_width()},
                      {name + "self_attn.k_proj", c.kv_width()},
                      {name + "self_attn.v_proj", c.kv_width()}},
                     c.hidden, c.bias_qkv, kSpread);
  if (c.qk_norm) {
    l.q_norm = add_ones(name + "self_attn.q_norm.weight", c.head_dim);
    l.k_norm = add_ones(name + "self_attn.k_norm.weight", c.head_dim);
  }
  if (c.sinks) l.sinks = add(name + "self_attn.sinks", 1, c.heads, 0, false);
  l.o = add_linear({{name + "self_attn.o_proj", c.hidden}}, c.query_width(), c.bias_o, deep);
  l.feed_forward_norm = add_norm(c, name + "post_attention_layernorm");
  if (!c.has_experts(n)) {
    l.feed_forward = add_feed_forward(c, name + "mlp", c.feed_forward, c.bias_feed_forward);
    return l;
  }
  l.router = add_linear({{name + "mlp.gate", c.experts.count}}, c.hidden, false, kSpread).weight;
  for (std::int64_t e = 0; e < c.experts.count; ++e)
    l.experts.push_back(add_feed_forward(c, name + "mlp.experts." + std::to_string(e), c.experts.width, false));
  for (std::int64_t e = 0; e < c.experts.shared; ++e)
    l.shared.push_back(add_feed_forward(c, name + "mlp.shared_experts." + std::to_string(e), c.experts.width, false));
  return l;
}

ParameterLayout::ParameterLayout(const ModelConfig& c) {
  embedding = *add_linear({{"model.embed_tokens", c.vocabulary}}, c.hidden, false, kSpread).weight;
  if (c.positions == PositionKind::learned)
    positions = add_linear({{"model.embed_positions", c.context}}, c.hidden, false, kSpread).weight;
  if (c.token_types > 0)
    token_types = add_linear({{"model.embed_types", c.token_types}}, c.hidden, false, kSpread).weight;
  if (c.embedding_norm) embedding_norm = add_norm(c, "model.embed_norm");
  for (std::int64_t n = 0; n < c.layers; ++n) layers.push_back(add_layer(c, n));
  if (!c.norm_after) final_norm = add_norm(c, "model.norm");
  if (!c.tied_embeddings) head = add_linear({{"lm_head", c.vocabulary}}, c.hidden, false, kSpread).weight;
  if (c.masked_head) {
    head_dense = add_linear({{"lm_head.dense", c.hidden}}, c.hidden, true, kSpread);
    head_norm = add_norm(c, "lm_head.norm");
    head_bias = add("lm_head.bias", 1, c.vocabulary, 0, false);
  }
  count_ = (count_ + kAlign - 1) / kAlign * kAlign;
}

std::int64_t ParameterLayout::parameters() const {
  std::int64_t sum = 0;
  for (const Parameter& p : all_) sum += p.count();
  return sum;
}

ParameterLayout::ParameterLayout(std::vector<Parameter> list) : all_(std::move(list)) {
  for (Parameter& p : all_) {
    p.offset = (count_ + kAlign - 1) / kAlign * kAlign;
    count_ = p.offset + p.count();
  }
  count_ = (count_ + kAlign - 1) / kAlign * kAlign;
}

const Parameter* ParameterLayout::find(std::string_view name) const {
  for (const Parameter& p : all_)
    if (p.name == name) return &p;
  return nullptr;
}

void initialise(const ParameterLayout& layout, std::uint64_t seed, MutableView values) {
  std::uint64_t stream = 0;
  for (const Parameter& p : layout.all()) {
    const std::uint64_t key = seed ^ (++stream * 0x9E3779B97F4A7C15ULL);
    parallel_for((p.count() + 4095) / 4096, [&](std::int64_t chunk, int) {
      for (std::int64_t i = chunk * 4096; i < std::min(p.count(), (chunk + 1) * 4096); ++i) {
        const double value = p.ones ? 1.0 : p.spread == 0 ? 0.0 : p.spread * normal(key, static_cast<std::uint64_t>(i));
        store_element(values.dtype, values.data, p.offset + i, value);
      }
    });
  }
}

}  // namespace attend::llm
