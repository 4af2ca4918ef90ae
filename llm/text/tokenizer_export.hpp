// A tokenizer in the other format: tokenizer.json for GGUF's settings, and the other way round.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/gguf.hpp"
#include "io/json_view.hpp"
#include "llm/text/tokenizer.hpp"

namespace attend::llm {

// tokenizer.ggml.* for the text of a byte-level BPE tokenizer.json; ids up to `vocabulary` that have no token are
// marked unused. `config` is tokenizer_config.json, or null. FileError for what GGUF has no name for.
std::vector<io::GgufEntry> gguf_tokenizer(std::string_view tokenizer_json, const io::JsonView& config,
                                          std::int64_t vocabulary, const std::string& what);

// A byte-level BPE as files spell it: characters stand for bytes (see bpe.hpp).
struct SpelledTokenizer {
  std::string pre;                  // llama.cpp's name of the way words are cut: "gpt-2", "smollm", "qwen2", ...
  std::vector<std::string> tokens;  // by id
  std::vector<std::string> merges;  // "left right", the first is merged first
  std::vector<Token> special;
};
std::string tokenizer_json(const SpelledTokenizer& spelled);

// tokenizer.json and tokenizer_config.json for a byte-level BPE of a GGUF file.
struct TokenizerTexts {
  std::string tokenizer_json, config_json;
};
TokenizerTexts tokenizer_texts(const io::Gguf& gguf, const std::string& what);

}  // namespace attend::llm
