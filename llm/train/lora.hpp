// LoRA: matrices of low rank beside those of a frozen model.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "attend/tensor.hpp"
#include "llm/train/parameters.hpp"

namespace attend::llm {

inline constexpr std::string_view kPeftPrefix = "base_model.model.";  // before every name in PEFT's files

struct LoraOptions {
  std::int64_t rank = 16;
  double alpha = 16;          // W + alpha / rank * B . A
  bool feed_forward = false;  // those of feed-forwards and experts too, not attention's alone
};

// A [rank, in] and B [out, rank] for each chosen matrix [out, in], in one flat array with a layout of its own: what
// works over a model's parameters (initialise, Moments, adamw_step, checkpoints) works over that. A network knows
// nothing of them: its parameters are those of merge_into(), and gradients() takes its gradients back to A and B.
class LoraAdapters {
 public:
  LoraAdapters(const ParameterLayout& model, const LoraOptions& options);

  const LoraOptions& options() const { return options_; }
  // "model.layers.0.self_attn.q_proj.lora_A.weight", normal at first, and ".lora_B.weight", zeros: the model is at
  // first what it was.
  const ParameterLayout& layout() const { return layout_; }

  // parameters = base, with W + alpha / rank * B . A for the chosen matrices. All are f32, or f64. Network::changed()
  // is to follow.
  void merge_into(View base, View adapters, MutableView parameters) const;
  // Those of A and B, overwritten, from those of a network with merged parameters.
  void gradients(View adapters, View network, MutableView result) const;

 private:
  struct Adapter {
    Parameter matrix;
    std::size_t a, b;  // places in layout_
  };
  static std::vector<Parameter> list(const std::vector<Adapter>& adapters, std::int64_t rank);
  static std::vector<Adapter> choose(const ParameterLayout& model, const LoraOptions& options);

  LoraOptions options_;
  std::vector<Adapter> adapters_;
  ParameterLayout layout_;
};

}  // namespace attend::llm
