// What the optimiser of a run moves: a network's own parameters, or adapters beside frozen ones.
#pragma once

#include <filesystem>
#include <memory>

#include "attend/tensor.hpp"
#include "llm/train/lora.hpp"
#include "llm/train/network.hpp"

namespace attend::llm {

class Trainable {
 public:
  virtual ~Trainable() = default;
  virtual const ParameterLayout& layout() const = 0;
  virtual MutableView values() = 0;  // whoever writes them calls changed() then
  virtual View gradients() = 0;      // from those of the network
  virtual void changed() = 0;        // tells the network
};

std::unique_ptr<Trainable> all_parameters(Network& network);

// A and B of LoRA. The network's parameters at that moment are kept as the frozen ones.
class LoraTrainable : public Trainable {
 public:
  LoraTrainable(Network& network, const LoraOptions& options, std::uint64_t seed);

  const ParameterLayout& layout() const override { return adapters_.layout(); }
  MutableView values() override { return values_; }
  View gradients() override;
  void changed() override;

  // Bytes beyond the network's own.
  static std::int64_t bytes(const ParameterLayout& model, const LoraOptions& options);
  // adapter_model.safetensors and adapter_config.json, as PEFT has them, into a folder that appears whole.
  void write(const std::filesystem::path& folder, const std::string& base) const;

 private:
  Network& network_;
  LoraAdapters adapters_;
  Tensor base_, values_, gradients_;
};

// Adds adapters to parameters: of a folder that LoraTrainable::write or PEFT wrote, or of MiniMind's LoRA .pth.
// FileError names the tensor that is unknown or of another shape. Matrices without an adapter stay as they are.
// `old_names`: the model is one of MiniMind's first generations, whose rows of q and k are in another order, and so are
// the adapters.
void merge_adapters(const std::filesystem::path& path, const ParameterLayout& layout, MutableView parameters,
                    bool old_names = false);

}  // namespace attend::llm
