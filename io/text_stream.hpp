// A text file read from front to back in bounded memory: mapped, or unpacked while it is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "io/mapped_file.hpp"
#include "io/unpack.hpp"
#include "io/utf8_text.hpp"

namespace attend::io {

// A byte-order mark at the front is dropped. Compression is detected by content, not by name.
class TextStream {
 public:
  explicit TextStream(const std::filesystem::path& path);  // a regular file, else FileError
  ~TextStream();
  TextStream(const TextStream&) = delete;
  TextStream& operator=(const TextStream&) = delete;

  const std::string& name() const { return origin_.name; }
  // The text from here on: at least `least` bytes if the file has them. Valid until the next call.
  std::string_view peek(std::size_t least);
  // The text up to and including the next '\n', but at most `most` bytes (4 or more), cut between two characters; "" at
  // the end of the file. Valid until the next call.
  std::string_view line(std::size_t most);
  std::int64_t line_number() const { return line_; }  // of what line() returned last, from 1
  // FileError unless `part`, a part of what line() returned last, is UTF-8: check_utf8.
  void check(std::string_view part) const;
  std::int64_t bytes_read() const;  // of the file on disk

 private:
  bool unpack_more();
  void release_taken();

  MappedFile file_;
  std::unique_ptr<Unpacker> unpacker_;  // null: the file is read as it is
  std::string buffer_;                  // unpacked text
  std::string_view window_;             // of buffer_, or the whole file
  std::size_t at_ = 0;                  // in window_
  std::size_t released_ = 0;            // bytes of the mapped file whose pages were given back
  std::int64_t line_ = 0;
  bool line_ended_ = true;
  TextOrigin origin_;  // of window_
};

}  // namespace attend::io
