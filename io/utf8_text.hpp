// Text that must be UTF-8: checked, and where it is not, an error that names the likely encoding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace attend::io {

// Where a text comes from, for messages.
struct TextOrigin {
  std::string name;
  bool is_file = true;                              // iconv can convert it under that name
  std::int64_t lines_before = 0, bytes_before = 0;  // of the file, before the text that is checked
};

// The encoding that bytes which are not UTF-8 probably have, as iconv calls it: UTF-8 (a damaged file), UTF-16LE,
// UTF-16BE, UTF-32LE, UTF-32BE, GB18030, ISO-8859-1 or WINDOWS-1252; "" for what does not look like text. At most 64
// KiB around byte `at`, the first that is wrong, are looked at.
std::string likely_encoding(std::string_view all, std::size_t at);

// FileError unless the bytes [begin, end) of `all` are UTF-8 without zero bytes. It names line, byte and likely
// encoding, and the iconv command that converts the text.
void check_utf8(std::string_view all, std::size_t begin, std::size_t end, const TextOrigin& origin);

// How many bytes of byte-order mark a text begins with: 3, or 0.
std::size_t byte_order_mark(std::string_view text);

// A whole text, checked, as all of attend reads it: without a byte-order mark, and CRLF as LF.
std::string utf8_text(std::string_view all, const TextOrigin& origin);
// The same of a regular file.
std::string read_utf8_file(const std::filesystem::path& path);

// Drops the '\r' before each '\n'.
void append_with_lf(std::string& out, std::string_view text);

}  // namespace attend::io
