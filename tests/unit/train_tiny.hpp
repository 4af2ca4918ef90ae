// Tiny networks of every family in training, for the tests of gradients.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "base/elements.hpp"
#include "base/random.hpp"
#include "llm/train/network.hpp"

namespace attend::llm {

inline ModelConfig tiny(const std::string& family) {
  ModelConfig c;
  c.family = family;
  c.vocabulary = 23, c.hidden = 12, c.layers = 2, c.heads = 4, c.kv_heads = 2, c.head_dim = 6;
  c.feed_forward = 20, c.context = 16, c.tied_embeddings = true;
  if (family == "minimind1") c.rope_style = RopeStyle::interleaved;
  if (family == "minimind1-norm") c.rope_style = RopeStyle::interleaved, c.qk_norm = true;
  if (family == "slow") c.rope_slowdown = {1, 2.5, 4};
  if (family == "qwen2") c.bias_qkv = true, c.tied_embeddings = false;
  if (family == "qwen3") c.qk_norm = true, c.head_dim = 4;
  if (family == "mistral") c.window = 3;
  if (family == "gpt-oss") c.sinks = true;
  if (family == "alibi") c.positions = PositionKind::alibi;
  if (family == "none") c.positions = PositionKind::none;
  if (family == "learned") c.positions = PositionKind::learned;
  if (family == "sinusoidal") c.positions = PositionKind::sinusoidal;
  if (family == "softcap") c.score_softcap = 0.7;
  if (family == "unscaled") c.attention_scale = 1.0;
  // Routing of the tests' tokens is well away from ties: another expert would make a difference of losses jump.
  if (family == "moe") c.experts = {.count = 4, .used = 2, .shared = 1, .width = 10};
  if (family == "moe-raw")
    c.experts = {.count = 5, .used = 2, .shared = 0, .width = 6, .normalised = false, .dense = {1}};
  if (family == "minimind3-moe") c.qk_norm = true, c.experts = {.count = 4, .used = 1, .shared = 0, .width = 10};
  if (family == "all") {  // at once
    c.positions = PositionKind::alibi, c.score_softcap = 2, c.attention_scale = 0.3, c.sinks = true, c.qk_norm = true;
    c.window = 4, c.windowed = {1};
  }
  if (family == "gpt2") {
    c.norm = NormKind::layer, c.positions = PositionKind::learned, c.gated = false;
    c.activation = ActivationKind::gelu_tanh, c.kv_heads = 4, c.head_dim = 3;
    c.bias_qkv = c.bias_o = c.bias_feed_forward = true;
  }
  if (family == "bert" || family == "bert-head" || family == "encoder") {
    c.norm = NormKind::layer, c.positions = PositionKind::learned, c.gated = false, c.causal = false;
    c.activation = ActivationKind::gelu, c.kv_heads = 4, c.head_dim = 3, c.norm_after = true;
    c.bias_qkv = c.bias_o = c.bias_feed_forward = true;
    if (family != "encoder") c.token_types = 2, c.embedding_norm = true;
    c.masked_head = family == "bert-head";
  }
  return c;
}

inline std::vector<std::string> all_families() {
  return {"minimind1-norm", "slow",     "llama",     "minimind1", "qwen2",   "qwen3",        "mistral", "gpt-oss",
          "gpt2",           "bert",     "bert-head", "encoder",   "alibi",   "none",         "learned", "sinusoidal",
          "softcap",        "unscaled", "all",       "moe",       "moe-raw", "minimind3-moe"};
}
inline std::string family_name(const testing::TestParamInfo<std::string>& one) {
  std::string name = one.param;
  std::erase(name, '-');
  return name;
}

inline TrainingBatch batch_of(const ModelConfig& c, std::vector<std::int64_t> lengths) {
  TrainingBatch batch;
  batch.starts = {0};
  std::uint64_t draw = 0;
  for (const std::int64_t length : lengths) {
    for (std::int64_t i = 0; i < length; ++i) {
      const auto token = [&] {
        return static_cast<std::int64_t>(uniform(7, draw++) * static_cast<double>(c.vocabulary));
      };
      batch.tokens.push_back(token());
      batch.targets.push_back(i % 5 == 3 ? kIgnored : token());
    }
    batch.starts.push_back(std::ssize(batch.tokens));
  }
  return batch;
}

// Values of some size everywhere, so that no gradient is small by accident.
inline void fill(Network& network) {
  MutableView values = network.parameters();
  for (const Parameter& p : network.layout().all())
    for (std::int64_t i = 0; i < p.count(); ++i) {
      const double noise = normal(11, static_cast<std::uint64_t>(p.offset + i));
      store_element(values.dtype, values.data, p.offset + i, (p.ones ? 1.0 : 0.0) + 0.3 * noise);
    }
  network.changed();
}

inline double gradient_at(Network& network, std::int64_t i) {
  const View g = network.gradients();
  return load_element(g.dtype, g.data, i);
}

// Which elements of a parameter are tried: the one with the largest gradient, and some that chance picks.
inline std::vector<std::int64_t> tried_elements(const Parameter& p, const View& gradients) {
  const auto size = [&](std::int64_t i) {
    return std::abs(load_element(gradients.dtype, gradients.data, p.offset + i));
  };
  std::vector<std::int64_t> elements{0};
  for (std::int64_t i = 1; i < p.count(); ++i)
    if (size(i) > size(elements[0])) elements[0] = i;
  for (std::uint64_t n = 0; n < 20; ++n)
    elements.push_back(
        static_cast<std::int64_t>(uniform(static_cast<std::uint64_t>(p.offset), n) * static_cast<double>(p.count())));
  return elements;
}

// Gradients against central differences of the objective, a function of the values, all f64. Calls seen(parameter, its
// largest difference quotient).
template <class Objective, class Seen>
void expect_central_differences(const ParameterLayout& layout, const MutableView& values, const View& gradients,
                                const Objective& objective, const Seen& seen) {
  constexpr double kStep = 1e-5;
  for (const Parameter& p : layout.all()) {
    double largest = 0;
    for (const std::int64_t i : tried_elements(p, gradients)) {
      const std::int64_t at = p.offset + i;
      const double value = load_element(values.dtype, values.data, at);
      store_element(values.dtype, values.data, at, value + kStep);
      const double above = objective();
      store_element(values.dtype, values.data, at, value - kStep);
      const double below = objective();
      store_element(values.dtype, values.data, at, value);
      const double expected = (above - below) / (2 * kStep);
      largest = std::max(largest, std::abs(expected));
      ASSERT_NEAR(load_element(gradients.dtype, gradients.data, at), expected, 1e-7 * std::max(1.0, std::abs(expected)))
          << p.name << " element " << i;
    }
    seen(p, largest);
  }
}

}  // namespace attend::llm
