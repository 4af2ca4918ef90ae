// Safetensors: a JSON header and the tensors' bytes behind it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/keyed_hash.hpp"
#include "io/atomic_file.hpp"
#include "io/mapped_file.hpp"

namespace attend::io {

struct StoredTensor {
  std::string name;
  std::string dtype;  // as the file says it: "F32", "BF16", "I64", ...
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;  // row-major, little-endian; any alignment
};

using Metadata = std::vector<std::pair<std::string, std::string>>;

// Bits of an element; 0 for a dtype that safetensors does not know.
int safetensors_bits(std::string_view dtype);

// A file that was checked whole before anything of it is used: the header lies inside the file, names each tensor once,
// and the tensors fill the rest without a hole or an overlap. FileError says which entry is wrong and how.
class Safetensors {
 public:
  static constexpr std::size_t kMostHeaderBytes = 100'000'000;

  explicit Safetensors(const std::filesystem::path& path);

  const std::vector<StoredTensor>& tensors() const { return tensors_; }  // in the order of their bytes
  const StoredTensor* find(std::string_view name) const;
  const Metadata& metadata() const { return metadata_; }

 private:
  MappedFile file_;
  Metadata metadata_;  // filled while the tensors are read
  std::vector<StoredTensor> tensors_;
  std::unordered_map<std::string_view, std::size_t, KeyedHash> places_;
};

// The same checks on bytes that are already in memory; views into them.
std::vector<StoredTensor> parse_safetensors(std::span<const std::byte> bytes, const std::string& what,
                                            Metadata& metadata);

// Atomically. Tensors are written in the given order. InvalidArgument when names repeat or a size does not fit its
// shape. With `content`, the tensors' bytes come from there and not from their data.
void write_safetensors(const std::filesystem::path& path, std::span<const StoredTensor> tensors,
                       const Metadata& metadata = {}, const PutTensor& content = {});

}  // namespace attend::io
