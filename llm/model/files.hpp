// The files of a model, opened and looked through: its description, its tensors, where its tokenizer is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "attend/weight.hpp"
#include "base/keyed_hash.hpp"
#include "llm/model/config.hpp"

namespace attend::llm {

// A tensor as it lies in the file.
struct StoredTensor {
  std::string name;
  std::string dtype;                   // as the file calls it
  std::optional<WeightFormat> format;  // none: not one that weights can have
  std::vector<std::int64_t> shape;     // row-major
  std::span<const std::byte> data;
};

// How a family calls its tensors. '%' stands for the layer, '#' for the expert; ".weight" and ".bias" follow. Empty:
// it has none.
struct Naming {
  std::string_view embedding, positions{}, token_types{}, embedding_norm{}, final_norm{}, head{};
  std::string_view attention_norm, q{}, k{}, v{}, qkv{}, o, q_norm{}, k_norm{}, sinks{};
  std::string_view feed_forward_norm, gate{}, up, down;
  std::string_view router{}, expert_gate{}, expert_up{}, expert_down{};
  std::string_view stacked_gate{}, stacked_up{}, stacked_down{};  // all experts of a layer in one tensor
  std::string_view shared_gate{}, shared_up{}, shared_down{};
  bool columns_first = false;  // matrices are stored [in, out]
};

// Opened for as long as the model's weights are being read. A Hugging Face folder (config.json and safetensors, one
// file or several), a GGUF file, or MiniMind's .pth. FileError says which file and which field cannot be used.
class ModelFiles {
 public:
  explicit ModelFiles(const std::filesystem::path& path);
  ~ModelFiles();
  ModelFiles(ModelFiles&&) noexcept;

  const std::filesystem::path& path() const { return path_; }
  const ModelConfig& config() const { return config_; }
  const Naming& naming() const { return *naming_; }
  const io::Gguf* gguf() const;  // null: another kind of file
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  const StoredTensor* find(std::string_view name) const;
  std::int64_t bytes() const;  // of all tensors

 private:
  struct Open;
  void add(StoredTensor tensor);
  void open_folder();
  void open_gguf();
  void open_pth();
  ModelConfig guess_minimind() const;
  void choose_naming();
  void complete_config();

  std::filesystem::path path_;
  std::unique_ptr<Open> open_;
  ModelConfig config_;
  const Naming* naming_ = nullptr;
  std::vector<StoredTensor> tensors_;
  std::unordered_map<std::string, std::size_t, KeyedHash> places_;
};

// `pattern` with its '%' and '#' filled in.
std::string tensor_name(std::string_view pattern, std::int64_t layer = 0, std::int64_t expert = 0);

}  // namespace attend::llm
