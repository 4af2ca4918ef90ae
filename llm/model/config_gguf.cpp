// Reads the description of a model out of a GGUF file.
#include <algorithm>
#include <cmath>
#include <string_view>

#include "llm/model/config_check.hpp"
#include "llm/model/family_marks.hpp"

namespace attend::llm {
namespace {

// Keys "llama.block_count" and so on, with errors that name them.
class Keys {
 public:
  Keys(const io::Gguf& gguf, std::string what) : gguf_(gguf), what_(std::move(what)) {
    const io::GgufValue* value = gguf.value("general.architecture");
    const auto* text = value == nullptr ? nullptr : std::get_if<std::string_view>(value);
    if (text == nullptr) throw io::FileError(what_ + ": general.architecture is missing or no string");
    family = *text;
  }

  [[noreturn]] void refuse(const std::string& key, const std::string& text) const {
    throw io::FileError(what_ + ": " + key + " " + text);
  }
  std::string full(const char* name) const { return family + "." + name; }

  std::optional<std::int64_t> maybe_integer(const std::string& key, std::int64_t least, std::int64_t most) const {
    const io::GgufValue* value = gguf_.value(key);
    if (value == nullptr) return std::nullopt;
    const auto* number = std::get_if<std::int64_t>(value);
    if (number == nullptr) refuse(key, "is no whole number");
    if (*number < least || *number > most)
      refuse(key,
             "is " + std::to_string(*number) + ", expected " + std::to_string(least) + " to " + std::to_string(most));
    return *number;
  }
  std::int64_t integer(const char* name, std::int64_t least, std::int64_t most) const {
    const auto number = maybe_integer(full(name), least, most);
    if (!number) refuse(full(name), "is missing");
    return *number;
  }
  std::optional<double> maybe_number(const char* name, double least, double most) const {
    const io::GgufValue* value = gguf_.value(full(name));
    if (value == nullptr) return std::nullopt;
    double number = 0;
    if (const auto* real = std::get_if<double>(value))
      number = *real;
    else if (const auto* whole = std::get_if<std::int64_t>(value))
      number = static_cast<double>(*whole);
    else
      refuse(full(name), "is no number");
    if (!(number >= least && number <= most))
      refuse(full(name),
             "is " + std::to_string(number) + ", expected " + std::to_string(least) + " to " + std::to_string(most));
    return number;
  }
  std::optional<std::string> maybe_string(const char* name) const {
    const io::GgufValue* value = gguf_.value(full(name));
    if (value == nullptr) return std::nullopt;
    const auto* text = std::get_if<std::string_view>(value);
    if (text == nullptr) refuse(full(name), "is no string");
    return std::string(*text);
  }

  std::string family;

 private:
  const io::Gguf& gguf_;
  std::string what_;
};

void read_rope(const Keys& k, const io::Gguf& gguf, ModelConfig& c) {
  // ggml rotates pairs that lie side by side for llama, whose files have q and k reordered for it, and halves for Qwen.
  c.rope_style = k.family == "llama" ? RopeStyle::interleaved : RopeStyle::half_split;
  c.rope_theta = k.maybe_number("rope.freq_base", 1, 1e12).value_or(10000);
  c.rotary_dim = k.maybe_integer(k.full("rope.dimension_count"), 2, c.head_dim).value_or(0);
  if (c.rotary_dim == c.head_dim) c.rotary_dim = 0;
  RopeScaling& s = c.rope_scaling;
  const std::string kind = k.maybe_string("rope.scaling.type").value_or("none");
  s.factor = k.maybe_number("rope.scaling.factor", 1, 1e6).value_or(1);
  s.original_length =
      k.maybe_integer(k.full("rope.scaling.original_context_length"), 1, kMostContext).value_or(c.context);
  if (kind == "linear") {
    s.kind = RopeScaling::Kind::linear;
  } else if (kind == "yarn") {
    s.kind = RopeScaling::Kind::yarn;
    s.beta_fast = k.maybe_number("rope.scaling.yarn_beta_fast", 1e-6, 1e6).value_or(32);
    s.beta_slow = k.maybe_number("rope.scaling.yarn_beta_slow", 1e-6, 1e6).value_or(1);
    if (const auto factor = k.maybe_number("rope.scaling.attn_factor", 0, 1e6))
      s.attention_factor = *factor * (s.factor > 1 ? 0.1 * std::log(s.factor) + 1 : 1.0);
  } else if (kind != "none") {
    k.refuse(k.full("rope.scaling.type"), "is \"" + kind + "\", expected none, linear or yarn");
  }
  // Llama 3's scaling comes as a tensor of divisors, one per pair; the weights' reader applies it.
  if (gguf.tensor("rope_freqs.weight") != nullptr && s.kind != RopeScaling::Kind::none)
    k.refuse(k.full("rope.scaling.type"), "stands beside rope_freqs.weight; expected only one of them");
}

}  // namespace

ModelConfig config_from_gguf(const io::Gguf& gguf, const std::string& what) {
  const Keys k(gguf, what);
  ModelConfig c;
  c.family = k.family;
  constexpr std::string_view kKnown[] = {"llama", "qwen2", "qwen3", "qwen3moe", "gpt2", "bert"};
  if (std::find(std::begin(kKnown), std::end(kKnown), k.family) == std::end(kKnown))
    k.refuse("general.architecture", "is \"" + k.family + "\", expected one of " + marked_families(kKnown));
  c.layers = k.integer("block_count", 1, kMostLayers);
  c.hidden = k.integer("embedding_length", 1, kMostWidth);
  c.heads = k.integer("attention.head_count", 1, kMostHeads);
  c.kv_heads = k.maybe_integer(k.full("attention.head_count_kv"), 1, kMostHeads).value_or(c.heads);
  c.context = k.integer("context_length", 1, kMostContext);
  c.feed_forward = k.maybe_integer(k.full("feed_forward_length"), 0, kMostWidth).value_or(0);
  if (const auto dim = k.maybe_integer(k.full("attention.key_length"), 1, kMostHeadDim)) {
    c.head_dim = *dim;
    if (k.maybe_integer(k.full("attention.value_length"), 1, kMostHeadDim).value_or(*dim) != *dim)
      k.refuse(k.full("attention.value_length"), "differs from key_length, which is not supported");
  } else {
    if (c.hidden % c.heads != 0) k.refuse(k.full("embedding_length"), "is not a multiple of the number of heads");
    c.head_dim = c.hidden / c.heads;
  }
  const io::GgufTensor* embedding = gguf.tensor("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2)
    throw io::FileError(what + ": the tensor token_embd.weight is missing or no matrix");
  c.vocabulary = embedding->shape[0];
  if (c.vocabulary < 1 || c.vocabulary > kMostVocabulary)
    throw io::FileError(what + ": token_embd.weight has " + std::to_string(c.vocabulary) + " rows");
  c.tied_embeddings = gguf.tensor("output.weight") == nullptr;
  if (k.family == "gpt2" || k.family == "bert") {
    c.norm = NormKind::layer;
    c.norm_eps = k.maybe_number("attention.layer_norm_epsilon", 0, 1).value_or(k.family == "bert" ? 1e-12 : 1e-5);
    c.positions = PositionKind::learned;
    c.gated = false;
    c.activation = k.family == "bert" ? ActivationKind::gelu : ActivationKind::gelu_tanh;
    if (k.family == "bert") {
      c.causal = false;
      c.norm_after = c.embedding_norm = c.tied_embeddings = true;
      const std::int64_t pooling = k.maybe_integer(k.full("pooling_type"), 0, 4).value_or(1);
      if (pooling > 2)
        k.refuse(k.full("pooling_type"), "is " + std::to_string(pooling) + ", expected 1 (mean) or 2 (cls)");
      c.pooling = pooling == 2 ? PoolingKind::first_token : PoolingKind::mean;
      const io::GgufTensor* types = gguf.tensor("token_types.weight");
      c.token_types = types != nullptr && types->shape.size() == 2 ? types->shape[0] : 0;
    }
  } else {
    c.norm_eps = k.maybe_number("attention.layer_norm_rms_epsilon", 0, 1).value_or(1e-5);
    c.qk_norm = k.family == "qwen3" || k.family == "qwen3moe";
    read_rope(k, gguf, c);
    c.window = k.maybe_integer(k.full("attention.sliding_window"), 0, kMostContext).value_or(0);
  }
  c.experts.count = k.maybe_integer(k.full("expert_count"), 0, kMostExperts).value_or(0);
  if (c.experts.count > 0) {
    c.experts.used = k.integer("expert_used_count", 1, c.experts.count);
    c.experts.width = k.maybe_integer(k.full("expert_feed_forward_length"), 1, kMostWidth).value_or(c.feed_forward);
    c.experts.normalised = true;
    if (k.maybe_integer(k.full("expert_shared_count"), 0, kMostExperts).value_or(0) > 0)
      k.refuse(k.full("expert_shared_count"), "is not zero, which is not supported");
  }
  c.bos = k.maybe_integer("tokenizer.ggml.bos_token_id", 0, c.vocabulary - 1);
  for (const char* key : {"eos", "eot", "eom"})
    if (const auto id = k.maybe_integer("tokenizer.ggml." + std::string(key) + "_token_id", 0, c.vocabulary - 1))
      c.eos.push_back(*id);
  check_config(c, what);
  return c;
}

}  // namespace attend::llm
