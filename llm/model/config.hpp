// What a model is made of: one description for every family the stack can run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "attend/activation.hpp"
#include "attend/rope.hpp"
#include "io/gguf.hpp"
#include "io/json.hpp"

namespace attend::llm {

enum class NormKind { rms, layer };
enum class PositionKind { none, rope, learned, sinusoidal, alibi };
using ActivationKind = Activation;
enum class PoolingKind { none, mean, first_token, max };  // of an encoder's rows into one embedding

struct Experts {
  std::int64_t count = 0;   // routed; 0: a plain feed-forward
  std::int64_t used = 0;    // for each token
  std::int64_t shared = 0;  // that every token goes through
  std::int64_t width = 0;
  bool normalised = true;             // the weights of those used sum to one
  std::vector<std::int64_t> dense{};  // layers that have a plain feed-forward all the same; rising, none twice
};

// Settings of sampling, each only where it is stated: by a model's files, a request or an option.
struct SamplingSettings {
  std::optional<double> temperature{}, top_p{}, min_p{}, repetition_penalty{};
  std::optional<std::int64_t> top_k{};  // 0: off
};

struct ModelConfig {
  std::string family;  // as the file names it: "llama", "qwen3", ...
  std::int64_t vocabulary = 0, hidden = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t feed_forward = 0;  // width
  std::int64_t context = 0;       // longest sequence it was made for

  bool causal = true;
  NormKind norm = NormKind::rms;
  double norm_eps = 1e-5;
  bool norm_after = false;  // x = norm(x + f(x)), as BERT does, instead of x + f(norm(x))
  bool qk_norm = false;     // RMS over head_dim, before the rotation

  PositionKind positions = PositionKind::rope;
  RopeStyle rope_style = RopeStyle::half_split;
  double rope_theta = 10000;
  std::int64_t rotary_dim = 0;  // 0: all of head_dim
  RopeScaling rope_scaling{};
  std::vector<double> rope_slowdown{};  // each pair rotates so many times slower; empty: the scaling says it all

  ActivationKind activation = ActivationKind::silu;
  bool gated = true;  // down(act(gate x) * up x); else down(act(up x))
  Experts experts{};
  bool tied_embeddings = false;
  bool bias_qkv = false, bias_o = false, bias_feed_forward = false;  // which projections add one
  std::int64_t token_types = 0;
  bool embedding_norm = false;  // of the sum of embeddings, before the first layer
  bool masked_head = false;     // logits are embedding . norm(act(dense(row))) + bias, as BertForMaskedLM has them

  std::int64_t window = 0;                  // keys a token sees, itself included; 0: all before it
  std::vector<std::int64_t> windowed{};     // layers the window holds for, rising; empty: all
  bool sinks = false;                       // a learnt logit per head that takes weight and gives nothing
  std::optional<double> attention_scale{};  // of scores; none: 1 / sqrt(head_dim); 1: they are not scaled
  double score_softcap = 0;                 // scores become cap * tanh(score / cap); 0: they stay as they are

  PoolingKind pooling = PoolingKind::none;
  std::int64_t longest_text = 0;  // tokens of a text that an embedding is made of; 0: the context
  std::optional<std::int64_t> bos{};
  std::vector<std::int64_t> eos{};  // each of them ends an answer
  SamplingSettings sampling{};      // that generation_config.json recommends

  bool has_experts(std::int64_t layer) const;
  std::int64_t window_of(std::int64_t layer) const;  // 0: none
  std::int64_t rotary() const { return rotary_dim == 0 ? head_dim : rotary_dim; }
  std::int64_t query_width() const { return heads * head_dim; }
  std::int64_t kv_width() const { return kv_heads * head_dim; }
};

// From Hugging Face's config.json, or MiniMind's; FileError names the field that cannot be used.
ModelConfig config_from_json(const io::Json& json, const std::string& what);
// What files next to config.json add to it: generation_config.json (the tokens that end an answer, the recommended
// sampling), and for an encoder modules.json, 1_Pooling/config.json and sentence_bert_config.json of Sentence
// Transformers.
void read_beside_config(const std::filesystem::path& folder, ModelConfig& config);
ModelConfig config_from_gguf(const io::Gguf& gguf, const std::string& what);
// config.json with model_type `family`: one that Transformers reads, or kOwnFamily.
std::string config_to_json(const ModelConfig& config, const std::string& family);

// model_type of what no family of Transformers computes; its config.json says all that a ModelConfig says, and this
// program alone reads it. Tensors are called as Llama's.
inline constexpr const char* kOwnFamily = "attend";
// The family of Transformers that computes exactly this, up to the order of q's and k's rows: llama, mistral, qwen2,
// qwen3 or qwen3_moe. Empty: there is none, and `why` tells what it would lack.
std::string plain_family(const ModelConfig& config, std::string& why);
// model_type for weights that lie as this config has them: a plain family, gpt2, bert, or kOwnFamily.
std::string family_to_write(const ModelConfig& config);

// How fast each pair of a row rotates; none without RoPE.
RopeFrequencies rope_frequencies(const ModelConfig& config);
// Rows of q and k in the order of another rotation: where row `r` comes from. The two of a rotated pair lie half a head
// apart, or side by side.
std::int64_t row_in_style(const ModelConfig& config, RopeStyle to, std::int64_t r);

}  // namespace attend::llm
