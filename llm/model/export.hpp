// Writes a model so that other programs load it: GGUF for llama.cpp, a folder for Transformers, a .pth for MiniMind.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "llm/model/files.hpp"

namespace attend::llm {

struct ExportOptions {
  // Of the matrices: f32, f16, bf16 or q8_0 (GGUF only). None: as they are, or f16 where the target cannot hold that.
  // From GGUF to GGUF one must be given.
  std::optional<WeightFormat> format{};
  bool replace = false;  // what is at the target: a file, or a folder that holds a model and no folders
  std::function<void(std::int64_t done, std::int64_t all)> progress{};
};

// Families with rotated positions, RMS norms and a gated feed-forward: Llama, Mistral, Qwen, MiniMind. FileError says
// what the target has no place for. Weights are never changed but for rounding to `format` and the order of q's and k's
// rows. The target appears whole: killed, out of space or refused, it is as it was before.
void export_gguf(const ModelFiles& files, const std::filesystem::path& path, const ExportOptions& options = {});
// For a model that is GGUF already, of any family: the same settings and tensors, with its matrices in `format`.
void convert_gguf(const ModelFiles& files, const std::filesystem::path& path, const ExportOptions& options);
// config.json, model.safetensors and the tokenizer's files.
void export_folder(const ModelFiles& files, const std::filesystem::path& folder, const ExportOptions& options = {});

struct PthExport {
  std::vector<std::string> beside{};  // files next to it that it is read with
  std::string note{};                 // why there are none; "": the model was read with those already there
};
// The state dict that MiniMind's own code loads: the same names as a folder's, and the head even where it is tied. Next
// to it config.json and the tokenizer are written, which it is read back with; never where another model would be read
// with them.
PthExport export_pth(const ModelFiles& files, const std::filesystem::path& path, const ExportOptions& options = {});

}  // namespace attend::llm
