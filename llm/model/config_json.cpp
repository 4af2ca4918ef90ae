// Reads Hugging Face's config.json and MiniMind's.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <string_view>

#include "llm/model/config_check.hpp"
#include "llm/model/family_marks.hpp"
#include "llm/model/fields.hpp"

namespace attend::llm {
namespace {

constexpr double kLeastEps = 0, kMostEps = 1, kLeastTheta = 1, kMostTheta = 1e12, kMostFactor = 1e6;

ActivationKind read_activation(const Fields& f, std::initializer_list<const char*> names, const char* usual) {
  std::string field = *names.begin();
  f.find(names, &field);
  const std::string text = f.maybe_string(names).value_or(usual);
  if (text == "silu" || text == "swish") return ActivationKind::silu;
  if (text == "gelu") return ActivationKind::gelu;
  if (text == "gelu_new" || text == "gelu_pytorch_tanh" || text == "gelu_fast") return ActivationKind::gelu_tanh;
  if (text == "relu") return ActivationKind::relu;
  f.refuse(field, "is " + io::json_quoted(text) + ", expected silu, gelu, gelu_new, gelu_pytorch_tanh or relu");
}

void read_rope_scaling(const Fields& f, RopeScaling& scaling, std::int64_t context) {
  const std::string kind = f.maybe_string({"rope_type", "type"}).value_or("default");
  if (kind == "default" || kind == "mrope") return;
  if (kind == "linear") {
    scaling.kind = RopeScaling::Kind::linear;
  } else if (kind == "llama3") {
    scaling.kind = RopeScaling::Kind::llama3;
    scaling.low_frequency = f.maybe_number({"low_freq_factor"}, 1e-6, kMostFactor).value_or(1);
    scaling.high_frequency = f.maybe_number({"high_freq_factor"}, 1e-6, kMostFactor).value_or(4);
    if (scaling.high_frequency <= scaling.low_frequency)
      f.refuse("high_freq_factor", "must be greater than low_freq_factor");
  } else if (kind == "yarn") {
    scaling.kind = RopeScaling::Kind::yarn;
    scaling.beta_fast = f.maybe_number({"beta_fast"}, 1e-6, kMostFactor).value_or(32);
    scaling.beta_slow = f.maybe_number({"beta_slow"}, 1e-6, kMostFactor).value_or(1);
    scaling.truncate = f.maybe_boolean({"truncate"}).value_or(true);
    scaling.attention_factor = f.maybe_number({"attention_factor"}, 0, kMostFactor);
    const auto mscale = f.maybe_number({"mscale"}, 0, kMostFactor);
    const auto all_dim = f.maybe_number({"mscale_all_dim"}, 0, kMostFactor);
    if (mscale && all_dim && *mscale != *all_dim)
      f.refuse("mscale", "differs from mscale_all_dim, which is not supported");
    if (mscale && all_dim && !scaling.attention_factor) scaling.attention_factor = 1.0;
  } else {
    f.refuse("rope_type", "is " + io::json_quoted(kind) + ", expected default, linear, llama3 or yarn");
  }
  const auto factor = f.maybe_number({"factor"}, 1, kMostFactor);
  if (!factor) f.refuse("factor", "is missing");
  scaling.factor = *factor;
  scaling.original_length = f.maybe_integer({"original_max_position_embeddings"}, 1, kMostContext)
                                .value_or(std::max<std::int64_t>(context, 1));
}

// theta and scaling stand at the top (Transformers 4), or together in rope_parameters (5).
void read_rope(const Fields& f, ModelConfig& c) {
  c.rope_theta = f.maybe_number({"rope_theta"}, kLeastTheta, kMostTheta).value_or(c.rope_theta);
  auto part = f.maybe_number({"partial_rotary_factor"}, 0, 1);
  for (const char* name : {"rope_parameters", "rope_scaling"}) {
    const io::Json* value = f.find({name});
    if (value == nullptr) continue;
    const Fields inner(*value, f.what() + ": \"" + name + "\"");
    c.rope_theta = inner.maybe_number({"rope_theta"}, kLeastTheta, kMostTheta).value_or(c.rope_theta);
    if (const auto inside = inner.maybe_number({"partial_rotary_factor"}, 0, 1)) part = inside;
    read_rope_scaling(inner, c.rope_scaling, c.context);
    break;
  }
  if (part && *part < 1) {
    c.rotary_dim = static_cast<std::int64_t>(static_cast<double>(c.head_dim) * *part);
    if (c.rotary_dim == 0) c.positions = PositionKind::none;  // nothing is rotated
  }
}

// MiniMind stretches only where its config says so beside rope_scaling, and only for contexts beyond the original
// length. In October and November 2025 it had a formula of its own, told by a rope_scaling without attention_factor;
// since then it is YaRN's. The third generation, which never had the first formula, writes head_dim into its config.
void read_minimind_rope(const Fields& f, ModelConfig& c) {
  c.rope_theta = f.maybe_number({"rope_theta"}, kLeastTheta, kMostTheta).value_or(1e6);
  const io::Json* given = f.find({"rope_scaling", "rope_parameters"});
  const io::Json nothing{io::Json::Value(io::Json::Object{})};
  const Fields inner(given == nullptr ? nothing : *given, f.what() + ": \"rope_scaling\"");
  c.rope_theta = inner.maybe_number({"rope_theta"}, kLeastTheta, kMostTheta).value_or(c.rope_theta);
  if (!f.maybe_boolean({"inference_rope_scaling"}).value_or(false)) return;
  const bool third = f.find({"head_dim", "num_experts"}) != nullptr;
  if (given == nullptr && !third)
    f.refuse("inference_rope_scaling",
             "is true, and there is no rope_scaling that tells which of MiniMind 2's two formulas is meant; expected "
             "{\"type\": \"yarn\", \"factor\": 16, \"beta_fast\": 32, \"beta_slow\": 1, \"attention_factor\": 1.0, "
             "\"original_max_position_embeddings\": 2048}, or its own of October and November 2025");
  if (const auto kind = inner.maybe_string({"rope_type", "type"}); kind && *kind != "yarn")
    inner.refuse("type", "is " + io::json_quoted(*kind) + ", expected yarn");
  const bool own = !third && inner.find({"attention_factor"}) == nullptr;
  RopeScaling s{.kind = RopeScaling::Kind::yarn};
  s.factor = inner.maybe_number({"factor"}, 1, kMostFactor).value_or(own ? 4 : 16);
  s.original_length = inner.maybe_integer({"original_max_position_embeddings"}, 1, kMostContext).value_or(2048);
  s.beta_fast = inner.maybe_number({"beta_fast"}, 1e-6, kMostFactor).value_or(own ? 4 : 32);
  s.beta_slow = inner.maybe_number({"beta_slow"}, 1e-6, kMostFactor).value_or(1);
  s.attention_factor = inner.maybe_number({"attention_factor"}, 0, kMostFactor).value_or(1);
  const bool stretched = c.context > s.original_length;
  if (!own) {
    if (!stretched) s.factor = 1;
    if (stretched || *s.attention_factor != 1) c.rope_scaling = s;
    return;
  }
  if (!stretched) return;
  // Pairs slower than one rotation over the original length become `factor` times slower; the others a little, by a
  // beta that grows from pair to pair.
  const std::int64_t pairs = c.head_dim / 2;
  bool slow = false;
  for (std::int64_t i = 0; i < pairs; ++i) {
    const double part = static_cast<double>(i) / static_cast<double>(std::max<std::int64_t>(pairs - 1, 1));
    const double beta = s.beta_slow + (s.beta_fast - s.beta_slow) * part;
    const double wave =
        2 * std::numbers::pi * std::pow(c.rope_theta, static_cast<double>(i) / static_cast<double>(pairs));
    slow = slow || wave > static_cast<double>(s.original_length);
    c.rope_slowdown.push_back(slow ? s.factor : beta * s.factor / (beta * s.factor - beta + 1));
  }
}

// Which layers look through the window: those called sliding_attention, where layers have names.
void read_window(const Fields& f, ModelConfig& c) {
  const auto width = f.maybe_integer({"sliding_window"}, 1, kMostContext);
  if (!width || !f.maybe_boolean({"use_sliding_window"}).value_or(true)) return;
  c.window = *width;
  const io::Json* types = f.find({"layer_types"});
  if (types != nullptr) {
    if (types->array() == nullptr || std::ssize(*types->array()) != c.layers)
      f.refuse("layer_types", "does not name each of " + std::to_string(c.layers) + " layers");
    for (std::int64_t layer = 0; layer < c.layers; ++layer) {
      const std::string* type = (*types->array())[static_cast<std::size_t>(layer)].string();
      if (type == nullptr || (*type != "full_attention" && *type != "sliding_attention"))
        f.refuse("layer_types", "holds something other than full_attention and sliding_attention");
      if (*type == "sliding_attention") c.windowed.push_back(layer);
    }
    if (c.windowed.empty()) c.window = 0;
  }
}

void read_experts(const Fields& f, ModelConfig& c) {
  if (!f.maybe_boolean({"use_moe"}).value_or(true)) return;
  const auto count =
      f.maybe_integer({"num_experts", "num_local_experts", "n_routed_experts"}, 0, kMostExperts).value_or(0);
  if (count == 0) return;
  Experts& e = c.experts;
  e.count = count;
  e.used = f.integer({"num_experts_per_tok", "num_experts_per_token"}, 1, count);
  const io::Json* shared = f.find({"n_shared_experts"});
  if (shared != nullptr && shared->boolean() != nullptr)  // MiniMind v1 has one or none
    e.shared = *shared->boolean() ? 1 : 0;
  else
    e.shared = f.maybe_integer({"n_shared_experts"}, 0, kMostExperts).value_or(0);
  e.width = f.maybe_integer({"moe_intermediate_size"}, 1, kMostWidth).value_or(c.feed_forward);
  e.normalised = f.maybe_boolean({"norm_topk_prob"}).value_or(c.family.starts_with("minimind"));
  // MiniMind's first two generations leave the weight of a single expert as it is.
  if (c.family.starts_with("minimind") && f.find({"n_routed_experts"}) != nullptr && e.used == 1) e.normalised = false;
  if (const auto scoring = f.maybe_string({"scoring_func"}); scoring && *scoring != "softmax")
    f.refuse("scoring_func", "is " + io::json_quoted(*scoring) + ", expected softmax");
  const std::int64_t step = f.maybe_integer({"decoder_sparse_step"}, 1, kMostLayers).value_or(1);
  std::vector<bool> named(static_cast<std::size_t>(c.layers));
  if (const io::Json* plain = f.find({"mlp_only_layers"})) {
    if (plain->array() == nullptr)
      f.refuse("mlp_only_layers", std::string("is ") + plain->kind() + ", expected a list");
    for (const io::Json& layer : *plain->array()) {
      if (layer.integer() == nullptr) f.refuse("mlp_only_layers", "holds something other than whole numbers");
      // Layers that are not there say nothing, and a list may be longer than the model.
      if (*layer.integer() >= 0 && *layer.integer() < c.layers)
        named[static_cast<std::size_t>(*layer.integer())] = true;
    }
  }
  for (std::int64_t layer = 0; layer < c.layers; ++layer)
    if ((layer + 1) % step != 0 || named[static_cast<std::size_t>(layer)]) e.dense.push_back(layer);
}

// Llama, Mistral, Qwen, MiniMind 2 and 3: pre-norm RMS, rotated, gated.
void read_llama_like(const Fields& f, ModelConfig& c) {
  c.norm_eps =
      f.maybe_number({"rms_norm_eps", "norm_eps"}, kLeastEps, kMostEps).value_or(c.family == "minimind" ? 1e-5 : 1e-6);
  c.activation = read_activation(f, {"hidden_act", "hidden_activation"}, "silu");
  c.qk_norm = c.family == "qwen3" || c.family == "qwen3_moe";
  // MiniMind ties and does not say so.
  c.tied_embeddings = f.maybe_boolean({"tie_word_embeddings"}).value_or(c.family == "minimind");
  if (c.family == "minimind")
    read_minimind_rope(f, c);
  else
    read_rope(f, c);
  read_window(f, c);
  read_experts(f, c);
  if (const auto type = f.maybe_string({"position_embedding_type"}); type && *type != "rope") {
    if (*type == "sinusoidal")
      c.positions = PositionKind::sinusoidal;
    else if (*type == "absolute" || *type == "learned")
      c.positions = PositionKind::learned;
    else if (*type == "alibi" && c.family == kOwnFamily)
      c.positions = PositionKind::alibi;
    else if (*type == "none")
      c.positions = PositionKind::none;
    else
      f.refuse("position_embedding_type",
               "is " + io::json_quoted(*type) + ", expected rope, learned, sinusoidal or none");
  }
}

void read_slowdown(const Fields& f, ModelConfig& c) {
  const io::Json* list = f.find({"rope_slowdown"});
  if (list == nullptr) return;
  if (list->array() == nullptr || std::ssize(*list->array()) != c.rotary() / 2)
    f.refuse("rope_slowdown", "is no list of " + std::to_string(c.rotary() / 2) + " numbers, one for each pair");
  for (const io::Json& item : *list->array()) {
    double factor = 0;
    if (!item.number(factor) || !(factor > 0 && factor <= kMostFactor))
      f.refuse("rope_slowdown", "holds something other than numbers above zero");
    c.rope_slowdown.push_back(factor);
  }
}

// What no other family says.
void read_own(const Fields& f, ModelConfig& c) {
  read_llama_like(f, c);
  const auto truth = [&](const char* name, bool& value) { value = f.maybe_boolean({name}).value_or(value); };
  const std::string norm = f.maybe_string({"norm_type"}).value_or("rms_norm");
  if (norm != "rms_norm" && norm != "layer_norm")
    f.refuse("norm_type", "is " + io::json_quoted(norm) + ", expected rms_norm or layer_norm");
  c.norm = norm == "rms_norm" ? NormKind::rms : NormKind::layer;
  visit_own_flags(c, truth);
  c.token_types = f.maybe_integer({"type_vocab_size"}, 0, kMostVocabulary).value_or(0);
  truth("attention_bias", c.bias_qkv);
  truth("mlp_bias", c.bias_feed_forward);
  if (f.maybe_boolean({"rope_interleaved"}).value_or(false)) c.rope_style = RopeStyle::interleaved;
  c.rotary_dim = f.maybe_integer({"rotary_dim"}, 0, c.head_dim).value_or(c.rotary_dim);
  read_slowdown(f, c);
  c.score_softcap = f.maybe_number({"attn_logit_softcapping"}, 0, kMostFactor).value_or(0);
  c.attention_scale = f.maybe_number({"attention_scale"}, 1e-9, kMostFactor);
}

void read_gpt2(const Fields& f, ModelConfig& c) {
  c.norm = NormKind::layer;
  c.norm_eps = f.maybe_number({"layer_norm_epsilon"}, kLeastEps, kMostEps).value_or(1e-5);
  c.positions = PositionKind::learned;
  c.activation = read_activation(f, {"activation_function"}, "gelu_new");
  c.gated = false;
  c.tied_embeddings = f.maybe_boolean({"tie_word_embeddings"}).value_or(true);
  if (c.feed_forward == 0) c.feed_forward = 4 * c.hidden;
  for (const char* name : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"})
    if (f.maybe_boolean({name}).value_or(false)) f.refuse(name, "is true, which is not supported");
  if (!f.maybe_boolean({"scale_attn_weights"}).value_or(true))
    f.refuse("scale_attn_weights", "is false, which is not supported");
}

void read_bert(const Fields& f, ModelConfig& c) {
  c.causal = false;
  c.norm = NormKind::layer;
  c.norm_after = c.embedding_norm = true;
  c.tied_embeddings = true;  // its files tell if there is another head
  c.norm_eps = f.maybe_number({"layer_norm_eps"}, kLeastEps, kMostEps).value_or(1e-12);
  c.positions = PositionKind::learned;
  c.activation = read_activation(f, {"hidden_act"}, "gelu");
  c.gated = false;
  c.token_types = f.maybe_integer({"type_vocab_size"}, 0, kMostVocabulary).value_or(2);
  c.pooling = PoolingKind::mean;
  if (const auto type = f.maybe_string({"position_embedding_type"}); type && *type != "absolute")
    f.refuse("position_embedding_type", "is " + io::json_quoted(*type) + ", expected absolute");
  if (f.maybe_boolean({"is_decoder"}).value_or(false)) f.refuse("is_decoder", "is true, which is not supported");
}

// MiniMind v1, and its successor of spring 2025: names of their own, pairs side by side.
void read_minimind_v1(const Fields& f, ModelConfig& c) {
  c.rope_style = RopeStyle::interleaved;
  c.norm_eps = f.maybe_number({"norm_eps"}, kLeastEps, kMostEps).value_or(1e-5);
  c.tied_embeddings = f.maybe_boolean({"tie_word_embeddings"}).value_or(true);
  read_rope(f, c);
  read_experts(f, c);
}

}  // namespace

std::vector<std::int64_t> token_ids(const io::Json* value, std::int64_t vocabulary) {
  std::vector<std::int64_t> ids;
  const auto add = [&](const io::Json& id) {
    if (id.integer() != nullptr && *id.integer() >= 0 && *id.integer() < vocabulary) ids.push_back(*id.integer());
  };
  if (value != nullptr && value->array() != nullptr)
    for (const io::Json& id : *value->array()) add(id);
  else if (value != nullptr)
    add(*value);
  return ids;
}

ModelConfig config_from_json(const io::Json& json, const std::string& what) {
  const Fields f(json, what);
  ModelConfig c;
  const std::string type = f.maybe_string({"model_type"}).value_or("");
  // Other families have fields of these names as well: DistilBERT, for one.
  const bool v1 = (type.empty() || type == "minimind") && f.find({"dim"}) != nullptr && f.find({"n_layers"}) != nullptr;
  constexpr std::string_view kKnown[] = {"llama",    "mistral", "qwen2", "qwen3",   "qwen3_moe",
                                         "minimind", "gpt2",    "bert",  kOwnFamily};
  c.family = v1 ? "minimind-v1" : type;
  if (!v1 && std::find(std::begin(kKnown), std::end(kKnown), type) == std::end(kKnown)) {
    const std::string names = marked_families(kKnown);
    if (type.empty()) f.refuse("model_type", "is missing, expected one of " + names);
    f.refuse("model_type", "is " + io::json_quoted(type) + ", expected one of " + names);
  }
  c.vocabulary = f.integer({"vocab_size"}, 1, kMostVocabulary);
  c.hidden = f.integer({"hidden_size", "n_embd", "dim"}, 1, kMostWidth);
  c.layers = f.integer({"num_hidden_layers", "n_layer", "n_layers"}, 1, kMostLayers);
  c.heads = f.integer({"num_attention_heads", "n_head", "n_heads"}, 1, kMostHeads);
  c.kv_heads = f.maybe_integer({"num_key_value_heads", "n_kv_heads"}, 1, kMostHeads).value_or(c.heads);
  if (const auto dim = f.maybe_integer({"head_dim"}, 1, kMostHeadDim)) {
    c.head_dim = *dim;
  } else {
    if (c.hidden % c.heads != 0) f.refuse("hidden_size", "is not a multiple of the number of heads");
    c.head_dim = c.hidden / c.heads;
  }
  c.feed_forward = f.maybe_integer({"intermediate_size", "n_inner", "hidden_dim"}, 1, kMostWidth).value_or(0);
  c.context =
      f.maybe_integer({"max_position_embeddings", "n_positions", "max_seq_len"}, 1, kMostContext).value_or(2048);
  if (const auto bos = token_ids(f.find({"bos_token_id"}), c.vocabulary); !bos.empty()) c.bos = bos.front();
  c.eos = token_ids(f.find({"eos_token_id"}), c.vocabulary);
  if (v1)
    read_minimind_v1(f, c);
  else if (type == "gpt2")
    read_gpt2(f, c);
  else if (type == "bert")
    read_bert(f, c);
  else if (type == kOwnFamily)
    read_own(f, c);
  else
    read_llama_like(f, c);
  check_config(c, what);
  return c;
}

}  // namespace attend::llm
