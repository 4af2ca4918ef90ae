// config.json made of anything: refused with a FileError, or a description whose parts fit together.
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "attend/error.hpp"
#include "io/json.hpp"
#include "llm/model/config.hpp"
#include "llm/model/plan.hpp"
#include "seeded.hpp"

namespace {

void check(bool ok, const char* text) {
  if (!ok) attend::test::stop(text);
}

void use(const attend::llm::ModelConfig& c) {
  check(c.vocabulary > 0 && c.hidden > 0 && c.layers > 0 && c.heads > 0 && c.head_dim > 0 && c.context > 0, "a size");
  check(c.kv_heads > 0 && c.heads % c.kv_heads == 0, "heads that cannot share");
  check(c.norm_eps >= 0 && c.norm_eps <= 1, "an eps");
  check(c.experts.count == 0 || (c.experts.used >= 1 && c.experts.used <= c.experts.count), "experts");
  check(!c.bos || (*c.bos >= 0 && *c.bos < c.vocabulary), "an id");
  for (const std::int64_t id : c.eos) check(id >= 0 && id < c.vocabulary, "an id that ends");
  for (std::int64_t n = 0; n < std::min<std::int64_t>(c.layers, 8); ++n)
    check(c.window_of(n) >= 0 && (c.experts.count > 0 || !c.has_experts(n)), "a layer");
  const attend::RopeFrequencies turns = attend::llm::rope_frequencies(c);
  if (c.positions == attend::llm::PositionKind::rope)
    check(2 * std::ssize(turns.per_position) == c.rotary() && c.rotary() <= c.head_dim, "the rotation's size");
  try {
    const attend::llm::ParameterCounts n = attend::llm::count_parameters(c);
    check(n.active >= 0 && n.active <= n.total(), "the parameters");
    check(attend::llm::kv_bytes_per_token(c, 2) > 0, "the cache");
  } catch (const attend::InvalidArgument&) {
    return;  // more than a number can say
  }
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most,
                                               unsigned int seed) {
  static const std::vector<std::string> kExamples = {
      R"({"model_type": "llama", "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
"num_key_value_heads": 2, "intermediate_size": 48, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
"original_max_position_embeddings": 64}, "tie_word_embeddings": true, "eos_token_id": [1, 2]})",
      R"({"model_type": "qwen3_moe", "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
"head_dim": 24, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": true,
"decoder_sparse_step": 2, "mlp_only_layers": [1], "sliding_window": 8, "use_sliding_window": true, "layer_types":
["full_attention", "sliding_attention", "full_attention", "full_attention"], "rope_parameters": {"rope_type": "yarn",
"factor": 16, "beta_fast": 32, "beta_slow": 1, "truncate": false, "attention_factor": 1.0, "rope_theta": 1e6}})",
      R"({"dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "vocab_size": 96, "norm_eps": 1e-5, "use_moe": true,
"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "scoring_func": "softmax", "max_seq_len": 512})",
      R"({"model_type": "minimind", "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 8,
"inference_rope_scaling": true, "partial_rotary_factor": 0.5, "position_embedding_type": "rope", "bos_token_id": 1})",
      R"({"model_type": "gpt2", "vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64,
"layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "scale_attn_weights": true})",
      R"({"model_type": "bert", "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
"intermediate_size": 48, "type_vocab_size": 2, "layer_norm_eps": 1e-12, "hidden_act": "gelu", "is_decoder": false})"};
  return attend::test::mutate_or_begin(data, size, most, seed, kExamples);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    use(attend::llm::config_from_json(attend::io::parse_json(text, "c", {.bytes = std::size_t{1} << 16}), "c"));
  } catch (const attend::io::FileError& error) {
    check(std::string_view(error.what()).starts_with("c"), "an error without its file");
  }
  return 0;
}
