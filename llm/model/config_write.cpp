// Writes config.json, and says which model_type a model has there.
#include <cstdio>
#include <functional>
#include <string_view>

#include "llm/model/config_check.hpp"

namespace attend::llm {
namespace {

std::string real_text(double value) {
  char text[32];
  (void)std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

using Put = std::function<void(const char* name, const std::string& value)>;

// What kOwnFamily says beside the fields of Llama.
void put_own(const ModelConfig& c, const Put& put) {
  const auto truth = [&](const char* name, bool value) { put(name, value ? "true" : "false"); };
  constexpr const char* kPositions[] = {"none", "rope", "learned", "sinusoidal", "alibi"};
  put("position_embedding_type", io::json_quoted(kPositions[static_cast<std::size_t>(c.positions)]));
  truth("rope_interleaved", c.rope_style == RopeStyle::interleaved);
  put("rotary_dim", std::to_string(c.rotary_dim));
  std::string slowdown;
  for (const double factor : c.rope_slowdown) slowdown += (slowdown.empty() ? "" : ", ") + real_text(factor);
  if (!slowdown.empty()) put("rope_slowdown", "[" + slowdown + "]");
  put("norm_type", c.norm == NormKind::rms ? "\"rms_norm\"" : "\"layer_norm\"");
  visit_own_flags(c, truth);
  if (c.token_types > 0) put("type_vocab_size", std::to_string(c.token_types));
  if (c.score_softcap > 0) put("attn_logit_softcapping", real_text(c.score_softcap));
  if (c.attention_scale) put("attention_scale", real_text(*c.attention_scale));
  if (c.experts.shared > 0) put("n_shared_experts", std::to_string(c.experts.shared));
  if (c.windowed.empty()) return;
  std::string types;
  for (std::int64_t n = 0; n < c.layers; ++n)
    types += std::string(n == 0 ? "" : ", ") + (c.window_of(n) > 0 ? "\"sliding_attention\"" : "\"full_attention\"");
  put("layer_types", "[" + types + "]");
}

}  // namespace

std::string plain_family(const ModelConfig& c, std::string& why) {
  const std::string others = " fit no family that others load";
  const std::string positions = c.positions == PositionKind::alibi ? "ALiBi" : "its kind of positions";
  if (c.score_softcap > 0)
    why = "soft-capped scores (attn_logit_softcapping)" + others;
  else if (c.attention_scale)
    why = "scores with a scale of their own (attention_scale)" + others;
  else if (c.sinks)
    why = "attention sinks" + others;
  else if (!c.causal || c.norm != NormKind::rms || c.norm_after || !c.gated || c.activation != ActivationKind::silu)
    why = c.family + " models cannot be written; Llama, Mistral, Qwen and MiniMind can";
  else if (c.positions != PositionKind::rope)
    why = c.family + " models cannot be written where they have " + positions + "; those with RoPE can";
  else if (c.experts.shared > 0)
    why = "a model with shared experts cannot be written: neither format's families have them";
  else if (c.experts.count > 0 && !c.qk_norm)
    why = "experts without normalised queries and keys" + others;
  if (!why.empty()) return "";
  if (c.experts.count > 0) return "qwen3_moe";
  if (c.qk_norm) return "qwen3";
  if (c.bias_qkv && !c.bias_o) return "qwen2";
  return c.window > 0 ? "mistral" : "llama";
}

namespace {

// What GPT-2 and BERT have in common, and the Llama kind has not.
bool is_first_kind(const ModelConfig& c) {
  const bool plain_scores = !c.qk_norm && !c.sinks && !c.attention_scale && c.score_softcap == 0 && c.window == 0;
  return plain_scores && c.norm == NormKind::layer && c.positions == PositionKind::learned && !c.gated &&
         c.experts.count == 0 && c.bias_qkv && c.bias_o && c.bias_feed_forward && c.kv_heads == c.heads &&
         c.query_width() == c.hidden;
}

constexpr const char* kActivations[] = {"silu", "gelu", "gelu_pytorch_tanh", "relu"};

std::string activation_text(const ModelConfig& c) {
  return io::json_quoted(kActivations[static_cast<std::size_t>(c.activation)]);
}

void put_gpt2(const ModelConfig& c, const Put& put) {
  put("n_embd", std::to_string(c.hidden));
  put("n_layer", std::to_string(c.layers));
  put("n_head", std::to_string(c.heads));
  put("n_inner", std::to_string(c.feed_forward));
  put("n_positions", std::to_string(c.context));
  put("layer_norm_epsilon", real_text(c.norm_eps));
  put("activation_function", activation_text(c));
}

void put_bert(const ModelConfig& c, const Put& put) {
  put("hidden_size", std::to_string(c.hidden));
  put("num_hidden_layers", std::to_string(c.layers));
  put("num_attention_heads", std::to_string(c.heads));
  put("intermediate_size", std::to_string(c.feed_forward));
  put("max_position_embeddings", std::to_string(c.context));
  put("type_vocab_size", std::to_string(c.token_types));
  put("layer_norm_eps", real_text(c.norm_eps));
  put("hidden_act", activation_text(c));
}

void put_scaling(const RopeScaling& s, const Put& put) {
  if (s.kind == RopeScaling::Kind::none) return;
  const char* kinds[] = {"default", "linear", "llama3", "yarn"};
  std::string scaling = std::string("{\"rope_type\": \"") + kinds[static_cast<std::size_t>(s.kind)] +
                        "\", \"factor\": " + real_text(s.factor);
  if (s.kind != RopeScaling::Kind::linear)
    scaling += ", \"original_max_position_embeddings\": " + std::to_string(s.original_length);
  if (s.kind == RopeScaling::Kind::llama3)
    scaling += ", \"low_freq_factor\": " + real_text(s.low_frequency) +
               ", \"high_freq_factor\": " + real_text(s.high_frequency);
  if (s.kind == RopeScaling::Kind::yarn) {
    scaling += ", \"beta_fast\": " + real_text(s.beta_fast) + ", \"beta_slow\": " + real_text(s.beta_slow);
    if (s.attention_factor) scaling += ", \"attention_factor\": " + real_text(*s.attention_factor);
  }
  put("rope_scaling", scaling + "}");
}

void put_experts(const ModelConfig& c, const Put& put) {
  if (c.experts.count == 0) return;
  put("num_experts", std::to_string(c.experts.count));
  put("num_experts_per_tok", std::to_string(c.experts.used));
  put("moe_intermediate_size", std::to_string(c.experts.width));
  put("norm_topk_prob", c.experts.normalised ? "true" : "false");
  put("decoder_sparse_step", "1");
  std::string dense;
  for (const std::int64_t layer : c.experts.dense) dense += (dense.empty() ? "" : ", ") + std::to_string(layer);
  put("mlp_only_layers", "[" + dense + "]");
}

void put_llama(const ModelConfig& c, const std::string& family, const Put& put) {
  const auto whole = [&](const char* name, std::int64_t value) { put(name, std::to_string(value)); };
  const auto truth = [&](const char* name, bool value) { put(name, value ? "true" : "false"); };
  whole("hidden_size", c.hidden);
  whole("intermediate_size", c.feed_forward > 0 ? c.feed_forward : c.experts.width);
  whole("num_hidden_layers", c.layers);
  whole("num_attention_heads", c.heads);
  whole("num_key_value_heads", c.kv_heads);
  whole("head_dim", c.head_dim);
  whole("max_position_embeddings", c.context);
  put("rms_norm_eps", real_text(c.norm_eps));
  put("hidden_act", activation_text(c));
  put("rope_theta", real_text(c.rope_theta));
  put_scaling(c.rope_scaling, put);
  if (family == "llama" || family == kOwnFamily) {
    truth("attention_bias", c.bias_qkv);
    truth("mlp_bias", c.bias_feed_forward);
  }
  if (c.window > 0) {
    whole("sliding_window", c.window);
    if (family != "mistral") truth("use_sliding_window", true);
  }
  put_experts(c, put);
  if (family == kOwnFamily) put_own(c, put);
}

}  // namespace

std::string family_to_write(const ModelConfig& c) {
  if (is_first_kind(c)) {
    const bool bert = !c.causal && c.norm_after && c.embedding_norm && c.token_types > 0;
    const bool gpt2 = c.causal && !c.norm_after && !c.embedding_norm && c.token_types == 0 && !c.masked_head;
    return bert ? "bert" : gpt2 ? "gpt2" : kOwnFamily;
  }
  std::string why;
  const std::string family = plain_family(c, why);
  const bool any_bias = c.bias_qkv || c.bias_o || c.bias_feed_forward;
  const bool fits = family == "llama"     ? c.bias_qkv == c.bias_o
                    : family == "qwen2"   ? !c.bias_feed_forward && c.window == 0
                    : family == "mistral" ? !any_bias
                                          : !any_bias && c.window == 0;
  const bool bare = !c.embedding_norm && !c.masked_head && c.token_types == 0 && c.rope_slowdown.empty();
  const bool whole = bare && c.rope_style == RopeStyle::half_split && c.rotary() == c.head_dim && c.windowed.empty();
  return family.empty() || !fits || !whole ? kOwnFamily : family;
}

std::string config_to_json(const ModelConfig& c, const std::string& family) {
  constexpr std::pair<std::string_view, const char*> kClasses[] = {
      {"gpt2", "GPT2LMHeadModel"},         {"bert", "BertForMaskedLM"},   {"llama", "LlamaForCausalLM"},
      {"mistral", "MistralForCausalLM"},   {"qwen2", "Qwen2ForCausalLM"}, {"qwen3", "Qwen3ForCausalLM"},
      {"qwen3_moe", "Qwen3MoeForCausalLM"}};
  std::string json = "{\n  \"model_type\": " + io::json_quoted(family);
  const auto put = [&](const char* name, const std::string& value) {
    json += std::string(",\n  \"") + name + "\": " + value;
  };
  const auto whole = [&](const char* name, std::int64_t value) { put(name, std::to_string(value)); };
  for (const auto& [known, name] : kClasses)
    if (known == family)
      put("architectures", std::string("[\"") + (family == "bert" && !c.masked_head ? "BertModel" : name) + "\"]");
  whole("vocab_size", c.vocabulary);
  put("tie_word_embeddings", c.tied_embeddings ? "true" : "false");
  if (family == "gpt2")
    put_gpt2(c, put);
  else if (family == "bert")
    put_bert(c, put);
  else
    put_llama(c, family, put);
  if (c.bos) whole("bos_token_id", *c.bos);
  if (c.eos.size() == 1) whole("eos_token_id", c.eos.front());
  if (c.eos.size() > 1) {
    std::string ids;
    for (const std::int64_t id : c.eos) ids += (ids.empty() ? "" : ", ") + std::to_string(id);
    put("eos_token_id", "[" + ids + "]");
  }
  return json + "\n}\n";
}

}  // namespace attend::llm
