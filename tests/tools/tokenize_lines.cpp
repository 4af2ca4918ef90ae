// Encodes and decodes what comes in, for tests that compare tokenizers: each text is its length (32 bits,
// little-endian) and its bytes; the answer is the number of tokens, the tokens, the length of the decoded text and that
// text.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "io/gguf.hpp"
#include "io/mapped_file.hpp"
#include "llm/text/tokenizer.hpp"

namespace {

using attend::llm::Tokenizer;

Tokenizer load(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path)) return attend::llm::tokenizer_from_folder(path);
  if (path.extension() == ".gguf") return attend::llm::tokenizer_from_gguf(attend::io::Gguf(path), path.string());
  const attend::io::MappedFile file(path);
  return attend::llm::tokenizer_from_json(attend::io::as_text(file.bytes()), path.string());
}

bool read(void* to, std::size_t bytes) {
  return std::fread(to, 1, bytes, stdin) == bytes;
}
void write_size(std::size_t size) {
  const auto count = static_cast<std::uint32_t>(size);
  std::fwrite(&count, sizeof count, 1, stdout);
}

// The decoder that takes a token at a time must give the same.
bool streams(const Tokenizer& tokenizer, std::span<const attend::llm::Token> tokens, const std::string& text) {
  attend::llm::StreamDecoder decoder(tokenizer);
  std::string all;
  for (const attend::llm::Token token : tokens) all += decoder.push(token);
  return all + decoder.finish() == text;
}

int run(const std::filesystem::path& path, bool add_special, bool parse_special) {
  const Tokenizer tokenizer = load(path);
  std::string text;
  for (std::uint32_t size = 0; read(&size, sizeof size);) {
    text.resize(size);
    if (!read(text.data(), size)) return std::fputs("the last text is cut short\n", stderr), 1;
    const std::vector<attend::llm::Token> tokens = tokenizer.encode(text, add_special, parse_special);
    const std::string decoded = tokenizer.decode(tokens);
    if (!streams(tokenizer, tokens, decoded)) return std::fputs("streamed text differs\n", stderr), 1;
    write_size(tokens.size());
    std::fwrite(tokens.data(), sizeof tokens[0], tokens.size(), stdout);
    write_size(decoded.size());
    std::fwrite(decoded.data(), 1, decoded.size(), stdout);
  }
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  bool add_special = true, parse_special = true;
  for (int i = 2; i < count; ++i) {
    if (std::strcmp(arguments[i], "--no-add-special") == 0) add_special = false;
    if (std::strcmp(arguments[i], "--no-parse-special") == 0) parse_special = false;
  }
  if (count < 2)
    return std::fputs("usage: attend_tokenize_lines FILE [--no-add-special] [--no-parse-special]\n", stderr), 2;
  try {
    return run(arguments[1], add_special, parse_special);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
