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
#include <unordered_set>
#include <vector>

#include "attend/llm/compute.hpp"
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
  std::string_view head_dense{}, head_norm{}, head_bias{};  // of a masked language model
  std::string_view attention_norm, q{}, k{}, v{}, qkv{}, o, q_norm{}, k_norm{}, sinks{};
  std::string_view feed_forward_norm, gate{}, up, down;
  std::string_view router{}, expert_gate{}, expert_up{}, expert_down{};
  std::string_view stacked_gate{}, stacked_up{}, stacked_down{};  // all experts of a layer in one tensor
  std::string_view shared_gate{}, shared_up{}, shared_down{};
  bool columns_first = false;  // matrices are stored [in, out]
};
// MiniMind's names before May 2025, and Hugging Face's: Llama's, which MiniMind has had since, GPT-2's and BERT's.
extern const Naming kMiniMindV1, kLlama, kGpt2, kBert;

// Opened for as long as the model's weights are being read. A Hugging Face folder (config.json with safetensors or
// pytorch_model.bin, one file or several), a GGUF file, or a .pth. Every tensor that the config asks for is there and
// has its shape. FileError says which file and which field or tensor cannot be used, and which tensor of a layer
// nothing would use.
class ModelFiles {
 public:
  explicit ModelFiles(const std::filesystem::path& path, Compute compute = Compute::file);
  ~ModelFiles();
  ModelFiles(ModelFiles&&) noexcept;

  const std::filesystem::path& path() const { return path_; }
  const ModelConfig& config() const { return config_; }
  const Naming& naming() const { return *naming_; }
  Compute compute() const { return compute_; }
  const io::Gguf* gguf() const;  // null: another kind of file
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  const StoredTensor* find(std::string_view name) const;
  const StoredTensor* find_used(const std::string& name) const;       // null too if the config asks for no such tensor
  std::int64_t bytes() const;                                         // of all tensors
  bool quantised() const;                                             // some tensors are
  WeightFormat loaded_format(const StoredTensor& tensor) const;       // that its weights will have in memory
  const std::vector<std::string>& unused() const { return unused_; }  // tensors outside the layers that nothing uses

 private:
  struct Open;
  void add(StoredTensor tensor);
  void open_folder();
  void open_gguf();
  void open_pth();
  void add_all(const std::filesystem::path& file);  // the tensors of a .safetensors, .bin or .pth
  void choose_naming();
  void complete_config();

  std::filesystem::path path_;
  Compute compute_;
  std::unique_ptr<Open> open_;
  ModelConfig config_;
  const Naming* naming_ = nullptr;
  std::vector<StoredTensor> tensors_;
  std::unordered_map<std::string, std::size_t, KeyedHash> places_;
  std::unordered_set<std::string> used_;
  std::vector<std::string> unused_;
};

// The config of a .pth of MiniMind, which holds weights alone: its generation is told by names and shapes. FileError
// where they leave a doubt.
ModelConfig minimind_config(const ModelFiles& files);

// Whether two tensors hold the same: a head that is tied to the embedding is often written a second time.
bool same_numbers(const StoredTensor& a, const StoredTensor& b);

// Tensors that the model's description has no use for. FileError names those inside its layers and those of a part that
// is used, since the model would compute something else without them; the names of others come back.
std::vector<std::string> unused_tensors(const ModelFiles& files);

// Whether a path ends so, in letters of any case: ".gguf".
bool has_extension(const std::filesystem::path& path, std::string_view extension);

// `pattern` with its '%' and '#' filled in.
std::string tensor_name(std::string_view pattern, std::int64_t layer = 0, std::int64_t expert = 0);

}  // namespace attend::llm
