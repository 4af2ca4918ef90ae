// Parameters that are trained, and adapters written as PEFT does.
#include "llm/train/trainable.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "io/atomic_file.hpp"
#include "io/atomic_folder.hpp"
#include "io/readable.hpp"
#include "io/safetensors.hpp"

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
    tensors.push_back({std::string(kPeftPrefix) + p.name, "F32", {p.rows, p.cols}, std::as_bytes(numbers)});
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

}  // namespace attend::llm
