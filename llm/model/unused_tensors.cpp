// Finds the tensors of a model's files that nothing would use.
#include <algorithm>
#include <array>
#include <optional>

#include "llm/model/files.hpp"

namespace attend::llm {
namespace {

// Made from the config when a model is built, and saved by some versions of some programs.
bool is_computed(std::string_view name) {
  constexpr std::array<std::string_view, 8> kEnds = {
      "rotary_emb.inv_freq",     "attention.mask", "attn.bias", "attn.masked_bias",
      "embeddings.position_ids", "pos_cis",        "freqs_cos", "freqs_sin"};
  return std::any_of(kEnds.begin(), kEnds.end(), [&](std::string_view end) { return name.ends_with(end); });
}

bool is_lora(std::string_view name) {
  return name.find(".lora.") != name.npos || name.find(".lora_A.") != name.npos || name.find(".lora_B.") != name.npos;
}

// Known to be of no use: what is computed, a tied head that repeats the embedding, BERT's heads for training.
bool is_known(const ModelFiles& files, std::string_view name) {
  if (is_computed(name)) return true;
  if (!files.config().causal) return name.starts_with("pooler.") || name.starts_with("cls.");
  return files.config().tied_embeddings && name == std::string(files.naming().head) + ".weight";
}

// The number of the layer it belongs to.
std::optional<std::int64_t> layer_of(const Naming& names, std::string_view name) {
  const std::string_view before = names.attention_norm.substr(0, names.attention_norm.find('%'));
  if (!name.starts_with(before)) return std::nullopt;
  name.remove_prefix(before.size());
  constexpr std::size_t kMostDigits = 9;
  std::int64_t number = 0;
  std::size_t digits = 0;
  for (; digits < std::min(name.size(), kMostDigits) && name[digits] >= '0' && name[digits] <= '9'; ++digits)
    number = 10 * number + (name[digits] - '0');
  return digits > 0 && name.substr(digits).starts_with('.') ? std::optional(number) : std::nullopt;
}

// Of a part outside the layers that is used, with an ending that is not.
bool is_of_a_part(const Naming& names, std::string_view name) {
  if (name == std::string(names.head) + ".weight") return false;
  for (const std::string_view part : {names.embedding, names.final_norm, names.head, names.embedding_norm})
    if (!part.empty() && name.starts_with(std::string(part) + ".")) return true;
  return false;
}

}  // namespace

std::vector<std::string> unused_tensors(const ModelFiles& files) {
  const auto refuse = [&](const std::string& text) { throw io::FileError(files.path().string() + ": " + text); };
  std::vector<std::string> unused;
  for (const StoredTensor& t : files.tensors()) {
    if (files.find_used(t.name) != nullptr || is_known(files, t.name)) continue;
    const std::string quoted = io::json_quoted(t.name);
    if (is_lora(t.name))
      refuse("the tensor " + quoted +
             " is of LoRA, beside the weight it changes; expected them merged (W + B A) first");
    if (const auto layer = layer_of(files.naming(), t.name)) {
      if (*layer >= files.config().layers)
        refuse("the config has " + std::to_string(files.config().layers) + " layers, and the tensor " + quoted +
               " belongs to layer " + std::to_string(*layer) + " (counted from 0)");
      refuse("nothing uses the tensor " + quoted + ": the model is not what its config (" + files.config().family +
             ") says, or is of a kind not known here");
    }
    if (is_of_a_part(files.naming(), t.name))
      refuse("nothing uses the tensor " + quoted + ", which belongs to a part that is used");
    unused.push_back(t.name);
  }
  return unused;
}

}  // namespace attend::llm
