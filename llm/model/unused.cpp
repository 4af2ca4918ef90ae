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

enum class Endings { weight, linear, norm };  // .weight alone; a bias as well; BERT's first names of both, too

bool ends(std::string_view rest, Endings endings) {
  if (rest == ".weight" || (rest == ".bias" && endings != Endings::weight)) return true;
  return endings == Endings::norm && (rest == ".gamma" || rest == ".beta");
}

// Says which tensors the weights' reader asks for.
class Usage {
 public:
  explicit Usage(const ModelFiles& files) : c_(files.config()), n_(files.naming()) {
    using enum Endings;
    top_ = {{n_.embedding, weight, true},
            {n_.positions, weight, c_.positions == PositionKind::learned},
            {n_.token_types, weight, c_.token_types > 0},
            {n_.embedding_norm, norm, !c_.causal},
            {n_.final_norm, norm, !c_.norm_after},
            {n_.head, weight, c_.causal && !c_.tied_embeddings},
            {"rope_freqs", weight, c_.positions == PositionKind::rope}};
    for (const std::string_view part : {n_.attention_norm, n_.feed_forward_norm})
      in_layers_.push_back({part, norm, true});
    for (const std::string_view part : {n_.q, n_.k, n_.v, n_.qkv, n_.o}) in_layers_.push_back({part, linear, true});
    for (const std::string_view part : {n_.q_norm, n_.k_norm}) in_layers_.push_back({part, weight, c_.qk_norm});
    plain_ = {{n_.gate, linear, c_.gated}, {n_.up, linear, true}, {n_.down, linear, true}};
    const Experts& e = c_.experts;
    experts_.push_back({n_.router, linear, true});
    for (const std::string_view part : {n_.stacked_gate, n_.stacked_up, n_.stacked_down})
      experts_.push_back({part, weight, true});
    for (const std::string_view part : {n_.expert_gate, n_.expert_up, n_.expert_down})
      experts_.push_back({part, linear, true, e.count});
    for (const std::string_view part : {n_.shared_gate, n_.shared_up, n_.shared_down})
      experts_.push_back({part, linear, e.shared > 0, e.shared});
  }

  bool uses(std::string_view name) const {
    if (any(top_, name)) return true;
    const auto layer = layer_of(name);
    if (!layer || *layer >= c_.layers) return false;
    if (any(in_layers_, name) || any(c_.has_experts(*layer) ? experts_ : plain_, name)) return true;
    const auto sinks = match(n_.sinks, name);
    return c_.sinks && sinks && sinks->rest.empty();
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
  struct Part {
    std::string_view pattern;  // "": the family has none
    Endings endings;
    bool used;
    std::int64_t experts = 1;  // how many there are of it
  };
  static bool any(const std::vector<Part>& parts, std::string_view name) {
    return std::any_of(parts.begin(), parts.end(), [&](const Part& part) {
      const auto place = part.used && !part.pattern.empty() ? match(part.pattern, name) : std::nullopt;
      return place && place->expert < part.experts && ends(place->rest, part.endings);
    });
  }

  const ModelConfig& c_;
  const Naming& n_;
  std::vector<Part> top_, in_layers_, plain_, experts_;  // the last two: in layers without and with experts
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
