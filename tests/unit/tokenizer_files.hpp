// Tokenizer files for tests: the golden ones, and GGUF files written on the spot.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/gguf.hpp"
#include "io/json.hpp"
#include "llm/text/tokenizer.hpp"
#include "support/golden.hpp"

namespace attend::llm::test {

inline std::string golden_text(const std::string& name) {
  std::ifstream file(attend::test::golden_folder() / "tokenizers" / name, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}
inline io::Json golden_json(const std::string& name) {
  return io::parse_json(golden_text(name), name);
}
inline Tokenizer golden_tokenizer(const std::string& family) {
  return tokenizer_from_json(golden_text(family + ".json"), family);
}

inline std::vector<Token> tokens_of(const io::Json& array) {
  std::vector<Token> tokens;
  for (const io::Json& id : *array.array()) tokens.push_back(static_cast<Token>(*id.integer()));
  return tokens;
}

// The settings of a GGUF file without tensors.
class GgufFile {
 public:
  void text(std::string_view key, std::string_view value) { add(key, 8, packed(value)); }
  void integer(std::string_view key, std::uint32_t value) { add(key, 4, raw(value)); }
  void boolean(std::string_view key, bool value) { add(key, 7, raw(std::uint8_t{value})); }
  void texts(std::string_view key, const std::vector<std::string>& values) {
    std::string bytes = raw(std::uint32_t{8}) + raw(std::uint64_t{values.size()});
    for (const std::string& value : values) bytes += packed(value);
    add(key, 9, bytes);
  }
  void integers(std::string_view key, const std::vector<std::int32_t>& values) {
    std::string bytes = raw(std::uint32_t{5}) + raw(std::uint64_t{values.size()});
    for (const std::int32_t value : values) bytes += raw(value);
    add(key, 9, bytes);
  }
  std::string bytes() const {
    return std::string("GGUF") + raw(std::uint32_t{3}) + raw(std::uint64_t{0}) + raw(count_) + settings_;
  }

 private:
  template <class T>
  static std::string raw(T x) {
    std::string bytes(sizeof x, '\0');
    std::memcpy(bytes.data(), &x, sizeof x);
    return bytes;
  }
  static std::string packed(std::string_view s) { return raw(std::uint64_t{s.size()}).append(s); }
  void add(std::string_view key, std::uint32_t type, const std::string& value) {
    settings_ += packed(key) + raw(type) + value;
    ++count_;
  }

  std::string settings_;
  std::uint64_t count_ = 0;
};

inline Tokenizer gguf_tokenizer(const GgufFile& file) {
  const std::string bytes = file.bytes();
  return tokenizer_from_gguf(io::parse_gguf(std::as_bytes(std::span(bytes)), "m.gguf"), "m.gguf");
}

}  // namespace attend::llm::test
