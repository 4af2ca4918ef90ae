// Reading zip archives: stored entries are views into the file, deflated ones are inflated in pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/keyed_hash.hpp"
#include "io/atomic_file.hpp"
#include "io/mapped_file.hpp"

namespace attend::io {

struct ZipEntry {
  std::string_view name;       // relative, without "..": safe to put under a folder
  std::uint64_t size = 0;      // unpacked
  std::uint32_t checksum = 0;  // CRC-32 of the unpacked bytes
  bool deflated = false;
  std::span<const std::byte> packed;  // as it lies in the archive

  bool is_folder() const { return name.back() == '/'; }
};

// Checked whole before anything is used: the directory fills the end of the file, every entry lies inside the file and
// overlaps no other, no name stands twice or leads out of a folder. FileError says which entry is wrong and how.
class Zip {
 public:
  explicit Zip(const std::filesystem::path& path);

  const std::vector<ZipEntry>& entries() const { return entries_; }  // in the directory's order
  const ZipEntry* find(std::string_view name) const;

  // The bytes of a stored entry where they lie; its checksum is not looked at. FileError if it is deflated.
  std::span<const std::byte> view(const ZipEntry& entry) const;

  // Hands the unpacked bytes to `put`, in pieces. FileError if they would be more than `most`, are not as many as the
  // directory says, or fail their checksum: the last is known only when all were handed over.
  void unpack(const ZipEntry& entry, std::uint64_t most, const PutBytes& put) const;
  std::vector<std::byte> read(const ZipEntry& entry, std::uint64_t most) const;

 private:
  friend class ZipReader;
  friend Zip parse_zip(std::span<const std::byte>, const std::string&);
  Zip() = default;
  [[noreturn]] void fail(const ZipEntry& entry, const std::string& text) const;
  void inflate(const ZipEntry& entry, const PutBytes& put) const;

  MappedFile file_;
  std::string what_;
  std::vector<ZipEntry> entries_;
  std::unordered_map<std::string_view, std::size_t, KeyedHash> places_;
};

Zip parse_zip(std::span<const std::byte> bytes, const std::string& what);  // views into `bytes`

}  // namespace attend::io
