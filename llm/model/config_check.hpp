// The limits that both readers of a config share.
#pragma once

#include "llm/model/config.hpp"

namespace attend::llm {

// Far above every model there is, far below what overflows a product of three of them.
inline constexpr std::int64_t kMostLayers = 4096, kMostHeads = 4096, kMostWidth = std::int64_t{1} << 20,
                              kMostVocabulary = std::int64_t{1} << 24, kMostContext = std::int64_t{1} << 30,
                              kMostExperts = 4096, kMostHeadDim = 4096;

// The ids of a config's field, one or a list. Small models made for tests often carry ids of a larger vocabulary: those
// are no ids.
std::vector<std::int64_t> token_ids(const io::Json* value, std::int64_t vocabulary);

// Of a config.json and its relatives: far more than any has, and little in memory whatever it holds.
inline constexpr io::JsonLimits kConfigLimits{.bytes = std::size_t{1} << 20, .values = std::size_t{1} << 17};
inline constexpr std::size_t kMostTensors = std::size_t{1} << 17;  // of all files of a model

// What the config.json of attend's own family says by true and false, beside the fields of Llama.
template <class Config, class Visit>
void visit_own_flags(Config& c, const Visit& visit) {
  visit("norm_after", c.norm_after);
  visit("is_causal", c.causal);
  visit("use_qk_norm", c.qk_norm);
  visit("mlp_gated", c.gated);
  visit("attention_sinks", c.sinks);
  visit("embedding_norm", c.embedding_norm);
  visit("masked_lm_head", c.masked_head);
  visit("attention_out_bias", c.bias_o);
}

// FileError when the parts do not fit together.
void check_config(const ModelConfig& config, const std::string& what);

}  // namespace attend::llm
