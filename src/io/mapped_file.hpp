// A whole file in memory, read as it is needed.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

#include "io/file_error.hpp"

namespace attend::io {

// Read-only. The file must not be cut short while it is mapped: reading behind its new end ends the process.
class MappedFile {
 public:
  MappedFile() = default;                                  // nothing
  explicit MappedFile(const std::filesystem::path& path);  // a regular file, else FileError
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
};

// Tells the system that these bytes of a mapped file will not be read again soon: the pages that lie wholly inside need
// not be kept. They are read anew if they are.
void not_needed_now(std::span<const std::byte> bytes);

// Bytes as characters.
inline std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace attend::io
