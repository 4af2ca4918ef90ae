// Parameters of a network in training as a model's files.
#pragma once

#include <filesystem>

#include "attend/tensor.hpp"
#include "llm/model/config.hpp"
#include "llm/train/parameters.hpp"

namespace attend::llm {

// config.json and model.safetensors into a folder that is there, each file whole or as it was. The matrices are f32,
// f16 or bf16, the rest f32. A plain Llama, Mistral or Qwen (and so MiniMind 2 and 3), a GPT-2 and a BERT are written
// as exactly that, under the names that Transformers has for them; MiniMind's first generation, whose rotation has its
// pairs side by side, as a Llama with q's and k's rows in that order; anything else as kOwnFamily.
void write_model(const std::filesystem::path& folder, const ModelConfig& config, const ParameterLayout& layout,
                 View parameters, DType dtype = DType::f32);

}  // namespace attend::llm
