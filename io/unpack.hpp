// Unpacks compressed files (gzip, zstd) in pieces.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "io/file_error.hpp"

namespace attend::io {

// One compressed file. A FileError names the file when it is damaged, cut short, or unpacks to far more than text does.
class Unpacker {
 public:
  virtual ~Unpacker() = default;
  Unpacker(const Unpacker&) = delete;
  Unpacker& operator=(const Unpacker&) = delete;

  // Writes the next bytes and returns how many; 0 at the end.
  std::size_t read(std::span<char> out);
  std::size_t used() const { return size_ - in_.size(); }  // packed bytes read so far

 protected:
  Unpacker(std::span<const std::byte> packed, std::string what)
      : in_(packed), size_(packed.size()), what_(std::move(what)) {}
  [[noreturn]] void fail(const std::string& text) const { throw FileError(what_ + ": " + text); }
  // One call of the library: consumes from in_ and writes to `out`. Returns the bytes written; sets done_ at the end.
  virtual std::size_t step(std::span<char> out) = 0;

  std::span<const std::byte> in_;  // what is left
  bool done_ = false;

 private:
  std::size_t size_, made_ = 0;
  std::string what_;
};

// Null if the bytes begin like neither gzip nor zstd. `packed` must outlive the result. zstd is decoded by the system's
// libzstd.so.1, loaded here: FileError if there is none.
std::unique_ptr<Unpacker> unpacker_of(std::span<const std::byte> packed, const std::string& what);

}  // namespace attend::io
