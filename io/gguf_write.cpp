// Writes GGUF: everything is checked before the first byte, tensors go to the file from where they lie.
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <unordered_set>

#include "attend/error.hpp"
#include "io/atomic_file.hpp"
#include "io/gguf.hpp"
#include "io/json.hpp"

namespace attend::io {
namespace {

constexpr std::uint32_t kVersion = 3;
constexpr std::size_t kAlignment = 32, kMostDims = 4, kLongestKey = 65535, kLongestTensorName = 63;

[[noreturn]] void refuse(const std::string& text) {
  throw InvalidArgument("write_gguf: " + text);
}

std::uint64_t padding(std::uint64_t size) {
  return (kAlignment - size % kAlignment) % kAlignment;
}

// The header, grown at its end; the numbers are little-endian, as gguf.cpp makes sure the machine is.
class Header {
 public:
  template <class T>
  void add(T x) {
    std::array<char, sizeof x> raw;
    std::memcpy(raw.data(), &x, sizeof x);
    bytes_.append(raw.data(), raw.size());
  }
  void add_text(std::string_view text) {
    add(std::uint64_t{text.size()});
    bytes_.append(text);
  }
  void add_bytes(std::span<const std::byte> bytes) { bytes_.append(as_text(bytes)); }
  void add_magic() { bytes_.append("GGUF"); }
  void pad() { bytes_.append(padding(bytes_.size()), '\0'); }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(bytes_)); }

 private:
  std::string bytes_;
};

// One setting; it knows its key for messages.
class EntryWriter {
 public:
  EntryWriter(const GgufEntry& entry, Header& header) : entry_(entry), header_(header) {}

  void write() {
    if (entry_.key.empty() || entry_.key.size() > kLongestKey)
      refuse("a setting's name has " + std::to_string(entry_.key.size()) + " bytes, expected 1 to 65535");
    header_.add_text(entry_.key);
    std::visit([this](const auto& value) { write_value(value); }, entry_.value);
  }

 private:
  void write_value(std::span<const std::byte> stored) { header_.add_bytes(stored); }
  template <class T>
  void write_value(const T& value) {
    header_.add(static_cast<std::uint32_t>(entry_.type));
    write_one(value);
  }
  template <class T>
  void write_value(const std::vector<T>& values) {
    header_.add(static_cast<std::uint32_t>(GgufType::array));
    header_.add(static_cast<std::uint32_t>(entry_.type));
    header_.add(std::uint64_t{values.size()});
    if (values.empty()) check_kind(T{});
    for (const T& value : values) write_one(value);
  }

  [[noreturn]] void wrong_type(const char* what) const {
    refuse("setting " + json_quoted(entry_.key) + " holds " + what + ", and its type is " +
           std::to_string(static_cast<std::uint32_t>(entry_.type)));
  }
  template <class T>
  void check_kind(const T&) {
    const bool text = entry_.type == GgufType::string, boolean = entry_.type == GgufType::boolean;
    const bool real = entry_.type == GgufType::f32 || entry_.type == GgufType::f64;
    if (entry_.type >= GgufType::array && entry_.type < GgufType::u64) wrong_type("an array");
    if (std::is_same_v<T, std::string> && !text) wrong_type("text");
    if (std::is_same_v<T, double> && !real) wrong_type("real numbers");
    if (std::is_same_v<T, std::int64_t> && (text || real)) wrong_type("whole numbers");
    if (std::is_same_v<T, bool> && !boolean) wrong_type("a boolean");
  }

  template <class T>
  void write_one(const T& value) {
    check_kind(value);
    if constexpr (std::is_same_v<T, std::string>) {
      header_.add_text(value);
    } else if constexpr (std::is_same_v<T, double>) {
      if (entry_.type == GgufType::f64) return header_.add(value);
      // A double beyond float would be undefined to convert; infinity and NaN are values of both.
      if (std::isfinite(value) && std::abs(value) > static_cast<double>(std::numeric_limits<float>::max()))
        refuse("setting " + json_quoted(entry_.key) + " is beyond f32");
      header_.add(static_cast<float>(value));
    } else {
      write_whole(static_cast<std::int64_t>(value));
    }
  }

  template <class T>
  void add_as(std::int64_t value) {
    if (!std::in_range<T>(value))
      refuse("setting " + json_quoted(entry_.key) + " is " + std::to_string(value) + ", expected " +
             std::to_string(std::numeric_limits<T>::min()) + " to " + std::to_string(std::numeric_limits<T>::max()) +
             " for its type");
    header_.add(static_cast<T>(value));
  }
  void write_whole(std::int64_t value) {
    switch (entry_.type) {
      case GgufType::u8:
        return add_as<std::uint8_t>(value);
      case GgufType::i8:
        return add_as<std::int8_t>(value);
      case GgufType::u16:
        return add_as<std::uint16_t>(value);
      case GgufType::i16:
        return add_as<std::int16_t>(value);
      case GgufType::u32:
        return add_as<std::uint32_t>(value);
      case GgufType::i32:
        return add_as<std::int32_t>(value);
      case GgufType::u64:
        return add_as<std::uint64_t>(value);
      case GgufType::i64:
        return header_.add(value);
      case GgufType::boolean:
        if (value != 0 && value != 1)
          refuse("setting " + json_quoted(entry_.key) + " is a boolean of " + std::to_string(value));
        return header_.add(static_cast<std::uint8_t>(value));
      case GgufType::f32:
      case GgufType::f64:
      case GgufType::string:
      case GgufType::array:
        break;
    }
    wrong_type("whole numbers");
  }

  const GgufEntry& entry_;
  Header& header_;
};

// Gives its bytes in the file.
std::uint64_t check_tensor(const GgufTensor& tensor) {
  if (tensor.name.empty() || tensor.name.size() > kLongestTensorName)
    refuse("the tensor's name " + json_quoted(tensor.name) + " has " + std::to_string(tensor.name.size()) +
           " bytes, expected 1 to 63");
  if (tensor.shape.size() > kMostDims)
    refuse("tensor " + json_quoted(tensor.name) + " has " + std::to_string(tensor.shape.size()) +
           " dimensions, expected at most 4");
  for (const std::int64_t size : tensor.shape)
    if (size < 0) refuse("tensor " + json_quoted(tensor.name) + " has a dimension of " + std::to_string(size));
  std::uint64_t bytes = 0;
  try {
    bytes = ggml_bytes(tensor, "write_gguf");
  } catch (const FileError& error) {
    throw InvalidArgument(error.what());
  }
  return bytes;
}

void check_bytes(const GgufTensor& tensor, std::uint64_t got, std::uint64_t expected) {
  if (got != expected)
    refuse("tensor " + json_quoted(tensor.name) + " has " + std::to_string(got) + " bytes, expected " +
           std::to_string(expected) + " for its shape");
}

// Fills `sizes` with the bytes of each tensor.
Header make_header(std::span<const GgufEntry> entries, std::span<const GgufTensor> tensors,
                   std::vector<std::uint64_t>& sizes) {
  Header header;
  header.add_magic();
  header.add(kVersion);
  header.add(std::uint64_t{tensors.size()});
  header.add(std::uint64_t{entries.size()});
  std::unordered_set<std::string_view> names;
  for (const GgufEntry& entry : entries) {
    if (!names.insert(entry.key).second) refuse("setting " + json_quoted(entry.key) + " stands twice");
    if (entry.key == "general.alignment") refuse("general.alignment is not for the caller to set: it is 32, always");
    EntryWriter(entry, header).write();
  }
  names.clear();
  std::uint64_t offset = 0;
  for (const GgufTensor& tensor : tensors) {
    if (!names.insert(tensor.name).second) refuse("tensor " + json_quoted(tensor.name) + " stands twice");
    sizes.push_back(check_tensor(tensor));
    header.add_text(tensor.name);
    header.add(static_cast<std::uint32_t>(tensor.shape.size()));
    for (std::size_t d = tensor.shape.size(); d-- > 0;) header.add(static_cast<std::uint64_t>(tensor.shape[d]));
    header.add(tensor.type);
    header.add(offset);
    offset += sizes.back() + padding(sizes.back());
  }
  header.pad();
  return header;
}

}  // namespace

void write_gguf(const std::filesystem::path& path, std::span<const GgufEntry> entries,
                std::span<const GgufTensor> tensors, const PutTensor& content) {
  std::vector<std::uint64_t> sizes;
  const Header header = make_header(entries, tensors, sizes);
  if (!content)
    for (std::size_t n = 0; n < tensors.size(); ++n) check_bytes(tensors[n], tensors[n].data.size(), sizes[n]);
  static constexpr std::array<std::byte, kAlignment> kZeros{};
  stream_file_atomically(path, [&](const PutBytes& put) {
    put(header.bytes());
    for (std::size_t n = 0; n < tensors.size(); ++n) {
      if (content)
        check_bytes(tensors[n], put_and_count(n, content, put), sizes[n]);
      else
        put(tensors[n].data);
      put(std::span(kZeros).first(padding(sizes[n])));
    }
  });
}

}  // namespace attend::io
