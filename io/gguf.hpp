// GGUF: llama.cpp's file of weights, tokenizer and settings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/keyed_hash.hpp"
#include "io/atomic_file.hpp"
#include "io/mapped_file.hpp"

namespace attend::io {

enum class GgufType : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };

// An array as it lies in the file: checked to be whole, decoded when it is asked for. A vocabulary costs nothing until
// then.
struct GgufArray {
  GgufType type = GgufType::u8;  // never array: nested arrays are refused
  std::uint64_t count = 0;
  std::span<const std::byte> bytes;

  std::vector<std::string_view> strings() const;  // empty unless type is string
  // Calls take(string_view) with each of them, and keeps none.
  template <class Take>
  void each_string(const Take& take) const {
    std::size_t at = 0;
    for (std::uint64_t n = type == GgufType::string ? count : 0; n > 0; --n) {
      std::uint64_t length = 0;
      std::memcpy(&length, bytes.data() + at, sizeof length);
      take(as_text(bytes.subspan(at + sizeof length, static_cast<std::size_t>(length))));
      at += sizeof length + static_cast<std::size_t>(length);
    }
  }
  std::vector<double> numbers() const;         // empty if type is string; whole numbers up to 2^53 exactly
  std::vector<std::int64_t> integers() const;  // empty unless they are whole numbers of at most 63 bits
};

// Whole numbers are widened to int64 (u64 above 2^63 - 1 is refused), f32 to double.
using GgufValue = std::variant<std::int64_t, double, bool, std::string_view, GgufArray>;

struct GgufTensor {
  std::string_view name;
  std::uint32_t type = 0;           // ggml's number: 0 F32, 1 F16, 2 Q4_0, ...
  std::vector<std::int64_t> shape;  // row-major, the last dimension contiguous: the reverse of the file's order
  std::span<const std::byte> data;
};

// A block of ggml's formats: so many numbers in so many bytes. {0, 0} for one that is not known here.
struct GgmlBlock {
  const char* name;
  std::int64_t numbers, bytes;
};
GgmlBlock ggml_block(std::uint32_t type);

// Checked whole before anything is used: every count against the bytes that are left, every offset against the end.
class Gguf {
 public:
  explicit Gguf(const std::filesystem::path& path);

  std::uint32_t version() const { return version_; }
  const std::vector<std::pair<std::string_view, GgufValue>>& values() const { return values_; }
  // The n-th setting as the file stores it: type and value. For a GgufEntry that copies it.
  std::span<const std::byte> stored_value(std::size_t n) const { return stored_values_.at(n); }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufValue* value(std::string_view key) const;
  const GgufTensor* tensor(std::string_view name) const;

 private:
  friend class GgufReader;
  friend Gguf parse_gguf(std::span<const std::byte>, const std::string&);
  Gguf() = default;

  MappedFile file_;
  std::uint32_t version_ = 0;
  std::vector<std::pair<std::string_view, GgufValue>> values_;
  std::vector<std::span<const std::byte>> stored_values_;
  std::vector<GgufTensor> tensors_;
  std::unordered_map<std::string_view, std::size_t, KeyedHash> value_places_, tensor_places_;
};

Gguf parse_gguf(std::span<const std::byte> bytes, const std::string& what);  // views into `bytes`

// Bytes of a tensor of this type and shape: whole blocks along its last dimension. FileError begins with `what`.
std::uint64_t ggml_bytes(const GgufTensor& tensor, const std::string& what);

// A setting to write. `type` is that of the value, or of the elements of an array; bytes are those of
// Gguf::stored_value(), with a type of their own.
struct GgufEntry {
  using Value = std::variant<std::int64_t, double, bool, std::string, std::vector<std::int64_t>, std::vector<double>,
                             std::vector<std::string>, std::span<const std::byte>>;
  std::string key;
  GgufType type;
  Value value;
};

// Atomically; version 3, tensors in the given order, each from a multiple of 32 bytes on. InvalidArgument when a name
// repeats or is longer than the 63 bytes that ggml takes, a value does not fit its type, or bytes do not fit their
// shape. With `content`, the tensors' bytes come from there and not from their data.
void write_gguf(const std::filesystem::path& path, std::span<const GgufEntry> entries,
                std::span<const GgufTensor> tensors, const PutTensor& content = {});

}  // namespace attend::io
