// A whole file in memory, read as it is needed.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "io/file_error.hpp"

namespace attend::io {

// Read-only. Reading behind the end of a file that was truncated while it is mapped raises SIGBUS: a program that
// handles it asks mapped_path whose fault it is. The library installs no handler.
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
  int noted_ = -1;  // its place in the list that mapped_path reads
};

// The path of the mapped file that holds this address, made printable, for a signal handler: it locks and allocates
// nothing. Null: none of them does (or there were more than could be noted).
const char* mapped_path(const void* address) noexcept;

// Tells the system that these bytes of a mapped file will not be read again soon: the pages that lie wholly inside need
// not be kept. They are read anew if they are.
void not_needed_now(std::span<const std::byte> bytes);

// Bytes as characters.
inline std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The lines of a text, without their ends.
std::vector<std::string_view> lines_of(std::string_view text);

}  // namespace attend::io
