// PyTorch's .pth: the tensors of a torch.save'd state dict, read without executing anything.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/keyed_hash.hpp"
#include "io/safetensors.hpp"
#include "io/zip.hpp"

namespace attend::io {

// A state dict, or a checkpoint that holds one under "state_dict", "model_state_dict" or "model"; dicts inside it give
// dotted names. The pickle is read by an interpreter that knows the few things a state dict is made of, and builds
// tensors, numbers and text alone; whatever else a file asks for is refused by its name. FileError says what is wrong.
class Pth {
 public:
  explicit Pth(const std::filesystem::path& path);

  const std::vector<StoredTensor>& tensors() const { return tensors_; }  // in the order of the dict; may share bytes
  const StoredTensor* find(std::string_view name) const;

 private:
  friend Pth parse_pth(std::span<const std::byte>, const std::string&);
  Pth(std::unique_ptr<const Zip> zip, const std::string& what);

  std::unique_ptr<const Zip> zip_;  // the tensors are views into it
  std::vector<StoredTensor> tensors_;
  std::unordered_map<std::string_view, std::size_t, KeyedHash> places_;
};

Pth parse_pth(std::span<const std::byte> bytes, const std::string& what);  // views into `bytes`

// Atomically, as torch.save writes a state dict. Dtypes F32, F16 and BF16; shapes without a 0. The bytes of a tensor
// come from `content`, one tensor at a time.
void write_pth(const std::filesystem::path& path, std::span<const StoredTensor> tensors, const PutTensor& content);

}  // namespace attend::io
