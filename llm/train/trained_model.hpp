// Between a model's files and the flat parameters of training.
#pragma once

#include <filesystem>

#include "llm/model/files.hpp"
#include "llm/train/parameters.hpp"

namespace attend::llm {

// Every weight of the files as f32, in the layout of their config.
void load_parameters(const ModelFiles& files, const ParameterLayout& layout, MutableView parameters);

// A folder that attend opens, and Transformers where it is a plain Llama or Qwen: config.json, model.safetensors (f32)
// and the tokenizer's files from `tokenizer`. Replaces the model that is there, at once.
void write_trained(const std::filesystem::path& folder, const ModelConfig& config, const ParameterLayout& layout,
                   View parameters, const std::filesystem::path& tokenizer);

}  // namespace attend::llm
