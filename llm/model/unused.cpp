// Finds the tensors of a model's files that nothing would use.
#include <algorithm>
#include <array>
#include <optional>

#include "llm/model/files.hpp"

namespace attend::llm {
namespace {

// The layer and the expert in a tensor's name; nothing if it is not of this pattern. `rest`: what stands behind it.
struct Place {
  std::int64_t layer = 0, expert = 0;
  std::string_view rest;
};
std::optional<Place> match(std::string_view pattern, std::string_view name) {
  Place place;
  for (const char c : pattern) {
    if (c != '%' && c != '#') {
      if (name.empty() || name.front() != c) return std::nullopt;
      name.remove_prefix(1);
      continue;
    }
    std::int64_t number = 0;
    std::size_t digits = 0;
    for (; digits < std::min<std::size_t>(name.size(), 9) && name[digits] >= '0' && name[digits] <= '9'; ++digits)
      number = 10 * number + (name[digits] - '0');
    if (digits == 0) return std::nullopt;
    (c == '%' ? place.layer : place.expert) = number;
    name.remove_prefix(digits);
  }
  place.rest = name;
  return place;
}

// Made from the config when a model is built, and saved by some versions of some programs.
bool is_computed(std::string_view name) {
  constexpr std::array<std::string_view, 8> kEnds = {
      "rotary_emb.inv_freq",     "attention.mask", "attn.bias", "attn.masked_bias",
      "embeddings.position_ids", "pos_cis",        "freqs_cos", "freqs_sin"};
  return std::any_of(kEnds.begin(), kEnds.end(), [&](std::string_view end) { return name.ends_with(end); });
}

class Usage {
 public:
  explicit Usage(const ModelFiles& files) : c_(files.config()), n_(files.naming()) {}

  bool uses(std::string_view name) const {
    const bool expert_layers = c_.experts.count > 0, stacked = !n_.stacked_up.empty();
    return one(name, n_.embedding, true, false) ||
           one(name, n_.positions, c_.positions == PositionKind::learned, false) ||
           one(name, n_.token_types, c_.token_types > 0, false) || one(name, n_.embedding_norm, !c_.causal) ||
           one(name, n_.final_norm, !c_.norm_after) || one(name, n_.head, c_.causal && !c_.tied_embeddings, false) ||
           one(name, "rope_freqs", c_.positions == PositionKind::rope, false) || in_layer(name, n_.attention_norm) ||
           in_layer(name, n_.feed_forward_norm) || in_layer(name, n_.q) || in_layer(name, n_.k) ||
           in_layer(name, n_.v) || in_layer(name, n_.qkv) || in_layer(name, n_.o) ||
           (c_.qk_norm && (in_layer(name, n_.q_norm) || in_layer(name, n_.k_norm))) || (c_.sinks && is_sinks(name)) ||
           plain_part(name, n_.gate, c_.gated) || plain_part(name, n_.up, true) || plain_part(name, n_.down, true) ||
           (expert_layers && expert_part(name, n_.router, 1)) ||
           (expert_layers && stacked &&
            (expert_part(name, n_.stacked_gate, 1) || expert_part(name, n_.stacked_up, 1) ||
             expert_part(name, n_.stacked_down, 1))) ||
           routed(name, n_.expert_gate) || routed(name, n_.expert_up) || routed(name, n_.expert_down) ||
           shared(name, n_.shared_gate) || shared(name, n_.shared_up) || shared(name, n_.shared_down);
  }

  // Known to be of no use: what is computed, a tied head that repeats the embedding, BERT's heads for training.
  bool is_known(const StoredTensor& t) const {
    if (is_computed(t.name)) return true;
    if (!c_.causal) return t.name.starts_with("pooler.") || t.name.starts_with("cls.");
    return c_.tied_embeddings && t.name == std::string(n_.head) + ".weight";
  }

  // The number of the layer it belongs to.
  std::optional<std::int64_t> layer_of(std::string_view name) const {
    const std::string_view layers = n_.attention_norm.substr(0, n_.attention_norm.find('%') + 1);
    const auto place = match(layers, name);
    return place && place->rest.starts_with('.') ? std::optional(place->layer) : std::nullopt;
  }
  // Of a part that is used, with an ending that is not.
  bool is_of_a_part(std::string_view name) const {
    for (const std::string_view part : {n_.embedding, n_.final_norm, n_.head, n_.embedding_norm})
      if (!part.empty() && name != std::string(n_.head) + ".weight" && name.starts_with(std::string(part) + "."))
        return true;
    return false;
  }

 private:
  static bool ends(std::string_view rest, bool bias = true) {
    return rest == ".weight" || rest == ".gamma" || (bias && (rest == ".bias" || rest == ".beta"));
  }
  static bool one(std::string_view name, std::string_view part, bool used, bool bias = true) {
    return used && !part.empty() && name.starts_with(part) && ends(name.substr(part.size()), bias);
  }
  std::optional<Place> place(std::string_view name, std::string_view pattern) const {
    const auto found = pattern.empty() ? std::nullopt : match(pattern, name);
    return found && found->layer < c_.layers && ends(found->rest) ? found : std::nullopt;
  }
  bool in_layer(std::string_view name, std::string_view pattern) const { return place(name, pattern).has_value(); }
  bool is_sinks(std::string_view name) const {
    const auto found = match(n_.sinks, name);
    return found && found->layer < c_.layers && found->rest.empty();
  }
  bool plain_part(std::string_view name, std::string_view pattern, bool used) const {
    const auto found = place(name, pattern);
    return used && found && !c_.has_experts(found->layer);
  }
  bool expert_part(std::string_view name, std::string_view pattern, std::int64_t count) const {
    const auto found = place(name, pattern);
    return found && c_.has_experts(found->layer) && found->expert < count;
  }
  bool routed(std::string_view name, std::string_view pattern) const {
    return expert_part(name, pattern, c_.experts.count);
  }
  bool shared(std::string_view name, std::string_view pattern) const {
    return c_.experts.shared > 0 && expert_part(name, pattern, c_.experts.shared);
  }

  const ModelConfig& c_;
  const Naming& n_;
};

bool is_lora(std::string_view name) {
  return name.find(".lora.") != name.npos || name.find(".lora_A.") != name.npos || name.find(".lora_B.") != name.npos;
}

}  // namespace

std::vector<std::string> unused_tensors(const ModelFiles& files) {
  const Usage usage(files);
  const auto refuse = [&](const std::string& text) { throw io::FileError(files.path().string() + ": " + text); };
  std::vector<std::string> unused;
  for (const StoredTensor& t : files.tensors()) {
    if (usage.uses(t.name) || usage.is_known(t)) continue;
    const std::string quoted = io::json_quoted(t.name);
    if (is_lora(t.name))
      refuse("the tensor " + quoted +
             " is of LoRA, beside the weight it changes; expected them merged (W + B A) first");
    if (const auto layer = usage.layer_of(t.name)) {
      if (*layer >= files.config().layers)
        refuse("the config has " + std::to_string(files.config().layers) + " layers, and the tensor " + quoted +
               " belongs to layer " + std::to_string(*layer) + " (counted from 0)");
      refuse("nothing uses the tensor " + quoted + ": the model is not what its config (" + files.config().family +
             ") says, or is of a kind not known here");
    }
    if (usage.is_of_a_part(t.name))
      refuse("nothing uses the tensor " + quoted + ", which belongs to a part that is used");
    unused.push_back(t.name);
  }
  return unused;
}

}  // namespace attend::llm
