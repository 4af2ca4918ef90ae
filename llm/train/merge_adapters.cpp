// Adapters of files, added to the weights they change.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <string>

#include "io/pth.hpp"
#include "io/safetensors.hpp"
#include "llm/model/config_check.hpp"
#include "llm/model/fields.hpp"
#include "llm/model/files.hpp"
#include "llm/model/stored_numbers.hpp"
#include "llm/train/trainable.hpp"

namespace attend::llm {
namespace {

constexpr std::int64_t kMaxRank = 1 << 20;

// The adapters of a file, by the names of a network's layout.
struct StoredAdapters {
  std::string file;
  LoraOptions options{};
  std::map<std::string, const io::StoredTensor*> tensors{};

  void add(const std::string& name, const io::StoredTensor& tensor) {
    if (!tensors.emplace(name, &tensor).second)
      throw io::FileError(file + ": duplicate tensor " + io::json_quoted(tensor.name));
  }
};

[[noreturn]] void refuse_unknown(const std::string& file, const io::StoredTensor& t) {
  throw io::FileError(file + ": tensors like " + io::json_quoted(t.name) +
                      " belong to no matrix of the model that can have an adapter; expected the model they were "
                      "trained with");
}

// PEFT's: adapter_config.json and adapter_model.safetensors.
StoredAdapters peft_adapters(const std::filesystem::path& folder, const io::Safetensors& file) {
  const std::filesystem::path path = folder / "adapter_config.json";
  const io::Json json = io::read_json(path, kConfigLimits);
  const Fields f(json, path.string());
  StoredAdapters stored{.file = (folder / "adapter_model.safetensors").string()};
  stored.options.rank = f.integer({"r"}, 1, kMaxRank);
  const auto alpha = f.maybe_number({"lora_alpha"}, -1e6, 1e6);
  stored.options.alpha = alpha.value_or(static_cast<double>(stored.options.rank));
  if (f.maybe_boolean({"use_rslora", "use_dora"}).value_or(false))
    f.refuse("use_rslora", "or use_dora is true, which is not supported");
  for (const io::StoredTensor& t : file.tensors())
    stored.add(t.name.starts_with(kPeftPrefix) ? t.name.substr(kPeftPrefix.size()) : t.name, t);
  return stored;
}

// A module's name of MiniMind's first generations as Llama's files call it; "": it is not one of theirs.
std::string llama_name(const std::string& module) {
  const auto parts = [](const Naming& n) { return std::array{n.q, n.k, n.v, n.o, n.gate, n.up, n.down}; };
  const auto old = parts(kMiniMindV1), now = parts(kLlama);
  for (std::size_t i = 0; i < old.size(); ++i) {
    const std::string_view before = old[i].substr(0, old[i].find('%')), after = old[i].substr(old[i].find('%') + 1);
    if (module.size() <= before.size() + after.size() || !module.starts_with(before) || !module.ends_with(after))
      continue;
    const std::string layer = module.substr(before.size(), module.size() - before.size() - after.size());
    std::string name(now[i]);
    return name.replace(name.find('%'), 1, layer);
  }
  return "";
}

// MiniMind's .pth: "model.layers.0.self_attn.q_proj.lora.A.weight" and ".B.weight"; W + B A, whatever the rank.
StoredAdapters minimind_adapters(const std::filesystem::path& path, const io::Pth& file, bool old_names) {
  StoredAdapters stored{.file = path.string()};
  stored.options.rank = 0;
  for (const io::StoredTensor& t : file.tensors()) {
    std::string name = t.name;
    for (const std::string_view wrapper : {"_orig_mod.", "module."})
      if (name.starts_with(wrapper)) name.erase(0, wrapper.size());
    const std::size_t at = name.find(".lora.");
    const std::string end = at == std::string::npos ? "" : name.substr(at);
    if (end != ".lora.A.weight" && end != ".lora.B.weight")
      throw io::FileError(path.string() + ": the tensor " + io::json_quoted(t.name) +
                          " is not of LoRA, expected MiniMind's adapters alone: names that end in .lora.A.weight and "
                          ".lora.B.weight");
    const bool is_a = end[6] == 'A';
    const std::string module = old_names ? llama_name(name.substr(0, at)) : name.substr(0, at);
    if (module.empty()) refuse_unknown(stored.file, t);
    stored.add(module + (is_a ? ".lora_A.weight" : ".lora_B.weight"), t);
    if (is_a && stored.options.rank == 0 && t.shape.size() == 2) stored.options.rank = t.shape[0];
  }
  if (stored.options.rank < 1 || stored.options.rank > kMaxRank)
    throw io::FileError(stored.file + ": the rank of its adapters is " + std::to_string(stored.options.rank) +
                        ", expected 1 to " + std::to_string(kMaxRank));
  stored.options.alpha = static_cast<double>(stored.options.rank);
  return stored;
}

void put_floats(const io::StoredTensor& t, float* to) {
  const WeightFormat format = t.dtype == "F32"   ? WeightFormat::f32
                              : t.dtype == "F16" ? WeightFormat::f16
                                                 : WeightFormat::bf16;
  std::ranges::copy(floats_of({format, t.data}), to);
}

void merge_stored(StoredAdapters stored, const ParameterLayout& layout, MutableView parameters) {
  const auto is_of_mlp = [](const auto& named) { return named.first.find(".mlp.") != std::string::npos; };
  stored.options.feed_forward = std::ranges::any_of(stored.tensors, is_of_mlp);
  const LoraAdapters adapters(layout, stored.options);
  Tensor values(DType::f32, {1, 1, 1, adapters.layout().count()});
  for (const auto& [name, tensor] : stored.tensors)
    if (adapters.layout().find(name) == nullptr) refuse_unknown(stored.file, *tensor);
  for (const auto& [name, tensor] : stored.tensors) {
    const io::StoredTensor& t = *tensor;
    const Parameter* p = adapters.layout().find(name);
    std::string other = name;
    other[name.rfind(".weight") - 1] = name.ends_with("A.weight") ? 'B' : 'A';
    if (!stored.tensors.contains(other))
      throw io::FileError(stored.file + ": " + io::json_quoted(t.name) + " has no counterpart, expected A and B");
    const bool is_known = t.dtype == "F32" || t.dtype == "F16" || t.dtype == "BF16";
    if (!is_known || t.shape != std::vector{p->rows, p->cols})
      throw io::FileError(stored.file + ": " + io::json_quoted(t.name) + " is not F32, F16 or BF16 of [" +
                          std::to_string(p->rows) + ", " + std::to_string(p->cols) + "], which the model asks for");
    put_floats(t, values.data<float>() + p->offset);
  }
  Tensor base(DType::f32, {1, 1, 1, layout.count()});
  std::memcpy(base.data<float>(), parameters.data, static_cast<std::size_t>(base.bytes()));
  adapters.merge_into(base, values, parameters);
}

}  // namespace

void merge_adapters(const std::filesystem::path& path, const ParameterLayout& layout, MutableView parameters,
                    bool old_names) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::exists(path / "adapter_config.json", error)) {
    const io::Safetensors file(path / "adapter_model.safetensors");
    return merge_stored(peft_adapters(path, file), layout, parameters);
  }
  if (!fs::exists(path, error)) throw io::FileError(path.string() + ": there is no such file or folder");
  if (!has_extension(path, ".pth") && !has_extension(path, ".pt") && !has_extension(path, ".bin"))
    throw io::FileError(
        path.string() +
        ": expected a run of attend train lora, a folder with adapter_config.json (PEFT), or MiniMind's "
        "LoRA .pth");
  const io::Pth file(path);
  merge_stored(minimind_adapters(path, file, old_names), layout, parameters);
}

}  // namespace attend::llm
