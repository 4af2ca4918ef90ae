// Text to tokens and back: byte-level BPE and WordPiece, from tokenizer.json, vocab.txt or GGUF.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attend/export.h"
#include "attend/llm/sampling.hpp"
#include "attend/state_pointer.hpp"

namespace attend::llm {

// The tokens a model gives a meaning of its own, as far as the file names them.
struct SpecialTokens {
  std::optional<Token> bos, eos, pad, unknown, cls, sep, mask;
  bool add_bos = false, add_eos = false;  // whether encode() puts tokens before and after the text
};

// A stretch of text for encode_parts(). In text that is not trusted, special tokens are plain text.
struct TextPart {
  std::string_view text;
  bool trusted = false;
};

struct TokenizerData;  // not a part of the API

// Does not change once it is made: any number of threads may use one. The ids and the decoded bytes are those of
// Hugging Face's `tokenizers`; a file that asks for something not supported here is refused, never approximated.
// Truncation and padding that tokenizer.json may carry are not applied.
class ATTEND_API Tokenizer {
 public:
  // A GGUF file, or a folder with tokenizer.json (and tokenizer_config.json and chat_template.jinja if they are there)
  // or vocab.txt. FileError says what cannot be used.
  static Tokenizer open(const std::filesystem::path& path);

  explicit Tokenizer(std::unique_ptr<const TokenizerData> data);  // for attend itself
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  std::int64_t vocabulary() const;  // the largest id + 1; there may be ids without a token
  const SpecialTokens& special() const;

  // Broken UTF-8 is read as U+FFFD, as Python's errors="replace" does. add_special: what the post-processor puts before
  // and after the text ([CLS], <s>, ...). parse_special: text such as <|im_start|> becomes its token; added tokens that
  // are not special do so always. InvalidArgument beyond 2^30 bytes.
  std::vector<Token> encode(std::string_view text, bool add_special = true, bool parse_special = true) const;
  // The parts as one text (words may run across their borders), with special tokens read in the trusted ones alone.
  std::vector<Token> encode_parts(std::span<const TextPart> parts, bool add_special = false) const;

  // Ids without a token give nothing. Broken UTF-8 becomes U+FFFD.
  std::string decode(std::span<const Token> tokens, bool skip_special = false) const;
  std::string_view piece(Token token) const;                // the token's bytes; "" for an id without a token
  std::optional<Token> find(std::string_view piece) const;  // by its bytes: "<|im_end|>", " the", "##ing"
  bool is_special(Token token) const;                       // false for an id without a token
  const std::string& chat_template() const;                 // Jinja as it stands in the file, or ""

 private:
  friend class StreamDecoder;
  StatePointer<std::unique_ptr<const TokenizerData>> data_;
};

// decode(), a token at a time: what push() and finish() give, joined, is what decode() gives for all tokens at once,
// and no piece ends inside a character. The tokenizer must outlive it (it may move).
class ATTEND_API StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = false);
  std::string push(Token token);
  std::string finish();  // what was held back; then it is as new

 private:
  const TokenizerData* data_;
  bool skip_special_;
  bool first_ = true;
  std::string held_;  // the beginning of a character
};

}  // namespace attend::llm
