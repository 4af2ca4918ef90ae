// Parameters that are trained, and adapters as PEFT's files have them.
#include "llm/train/trainable.hpp"

#include <cstring>
#include <string>
#include <vector>

#include "io/atomic_file.hpp"
#include "io/atomic_folder.hpp"
#include "io/readable.hpp"
#include "io/safetensors.hpp"
#include "llm/model/config_check.hpp"
#include "llm/model/fields.hpp"

namespace attend::llm {
namespace {

class AllParameters : public Trainable {
 public:
  explicit AllParameters(Network& network) : network_(network) {}
  const ParameterLayout& layout() const override { return network_.layout(); }
  MutableView values() override { return network_.parameters(); }
  View gradients() override { return network_.gradients(); }
  void changed() override { network_.changed(); }

 private:
  Network& network_;
};

constexpr std::string_view kPrefix = "base_model.model.";  // PEFT's, before every name

// The last part of a matrix's name: "q_proj".
std::string module_of(const std::string& adapter) {
  const std::size_t end = adapter.find(".lora_"), begin = adapter.rfind('.', end - 1) + 1;
  return adapter.substr(begin, end - begin);
}

}  // namespace

std::unique_ptr<Trainable> all_parameters(Network& network) {
  return std::make_unique<AllParameters>(network);
}

LoraTrainable::LoraTrainable(Network& network, const LoraOptions& options, std::uint64_t seed)
    : network_(network),
      adapters_(network.layout(), options),
      base_(DType::f32, {1, 1, 1, network.layout().count()}),
      values_(DType::f32, {1, 1, 1, adapters_.layout().count()}),
      gradients_(DType::f32, {1, 1, 1, adapters_.layout().count()}) {
  std::memcpy(base_.data<float>(), network.parameters().data, static_cast<std::size_t>(base_.bytes()));
  initialise(adapters_.layout(), seed, values_);
}

View LoraTrainable::gradients() {
  adapters_.gradients(values_, network_.gradients(), gradients_);
  return gradients_;
}

void LoraTrainable::changed() {
  adapters_.merge_into(base_, values_, network_.parameters());
  network_.changed();
}

std::int64_t LoraTrainable::bytes(const ParameterLayout& model, const LoraOptions& options) {
  return 4 * (model.count() + 4 * LoraAdapters(model, options).layout().count());
}

void LoraTrainable::write(const std::filesystem::path& folder, const std::string& base) const {
  const auto* values = static_cast<const float*>(values_.view().data);
  std::vector<io::StoredTensor> tensors;
  std::vector<std::string> modules;
  for (const Parameter& p : adapters_.layout().all()) {
    const std::span numbers(values + p.offset, static_cast<std::size_t>(p.count()));
    tensors.push_back({std::string(kPrefix) + p.name, "F32", {p.rows, p.cols}, std::as_bytes(numbers)});
    const std::string module = io::json_quoted(module_of(p.name));
    if (std::find(modules.begin(), modules.end(), module) == modules.end()) modules.push_back(module);
  }
  std::string list = "[";
  list += io::joined(modules, ", ");
  list += "]";
  io::JsonObject json(true);
  json.string("peft_type", "LORA");
  json.string("task_type", "CAUSAL_LM");
  json.string("base_model_name_or_path", base);
  json.number("r", adapters_.options().rank);
  json.number("lora_alpha", adapters_.options().alpha);
  json.number("lora_dropout", 0.0);
  json.put("target_modules", list);
  json.string("bias", "none");
  json.truth("inference_mode", true);
  const std::string text = json.text();
  io::NewFolder made(folder, true);
  io::write_safetensors(made.path() / "adapter_model.safetensors", tensors, {{"format", "pt"}});
  io::write_file_atomically(made.path() / "adapter_config.json", std::as_bytes(std::span(text)));
  made.commit();
}

void merge_adapters(const std::filesystem::path& folder, const ParameterLayout& layout, MutableView parameters) {
  const std::filesystem::path config_path = folder / "adapter_config.json", path = folder / "adapter_model.safetensors";
  const io::Json json = io::read_json(config_path, kConfigLimits);
  const Fields f(json, config_path.string());
  LoraOptions options;
  options.rank = f.integer({"r"}, 1, 1 << 20);
  const auto alpha = f.maybe_number({"lora_alpha"}, -1e6, 1e6);
  options.alpha = alpha.value_or(static_cast<double>(options.rank));
  if (f.maybe_boolean({"use_rslora", "use_dora"}).value_or(false))
    f.refuse("use_rslora", "or use_dora is true, which is not supported");
  const io::Safetensors file(path);
  for (const io::StoredTensor& t : file.tensors())
    if (t.name.find(".mlp.") != std::string::npos) options.feed_forward = true;

  const LoraAdapters adapters(layout, options);
  Tensor values(DType::f32, {1, 1, 1, adapters.layout().count()});
  std::size_t used = 0;
  for (const Parameter& p : adapters.layout().all()) {
    // Those that are not there are zeros: they change nothing.
    const io::StoredTensor* t = file.find(std::string(kPrefix) + p.name);
    if (t == nullptr) continue;
    if (t->dtype != "F32" || t->shape != std::vector{p.rows, p.cols})
      throw io::FileError(path.string() + ": " + io::json_quoted(t->name) + " is not F32 [" + std::to_string(p.rows) +
                          ", " + std::to_string(p.cols) + "], which the model asks for");
    std::memcpy(values.data<float>() + p.offset, t->data.data(), t->data.size());
    ++used;
  }
  if (used != file.tensors().size())
    throw io::FileError(path.string() + ": " + std::to_string(file.tensors().size() - used) +
                        " of its tensors belong to no matrix of the model that can have an adapter");
  Tensor base(DType::f32, {1, 1, 1, layout.count()});
  std::memcpy(base.data<float>(), parameters.data, static_cast<std::size_t>(base.bytes()));
  adapters.merge_into(base, values, parameters);
}

}  // namespace attend::llm
