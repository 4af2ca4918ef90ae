// Learns a byte-level BPE from text: the merges, in the order of how often their pairs occur.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/keyed_hash.hpp"
#include "llm/text/pre_tokenizer.hpp"
#include "llm/text/tokenizer_export.hpp"

namespace attend::llm {

struct TokenizerTraining {
  std::int64_t vocabulary = 6400;                                                      // special tokens included
  std::vector<std::string> special = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};  // ids from 0 up
  std::int64_t least_count = 2;                                                        // of a pair, to be merged
};

// The same merges as Hugging Face's BpeTrainer with the bytes as its alphabet: of pairs that occur equally often the
// one with the smaller ids comes first, so the result depends on the text alone.
class TokenizerTrainer {
 public:
  // How words are cut: "gpt-2", or "smollm", which has each digit alone.
  explicit TokenizerTrainer(std::string pre = "gpt-2");

  void add(std::string_view text);  // one document; broken UTF-8 is read as U+FFFD
  std::int64_t words() const { return static_cast<std::int64_t>(counts_.size()); }  // different ones

  using Progress = std::function<void(std::int64_t tokens, std::int64_t wanted)>;
  // Ends before the vocabulary is full if no pair occurs often enough. InvalidArgument for a vocabulary that cannot
  // hold the bytes and the special tokens.
  SpelledTokenizer train(const TokenizerTraining& training, const Progress& progress = {}) const;

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view word) const { return hash(word); }
    KeyedHash hash;
  };
  std::string pre_;
  PreTokenizer cut_;
  std::unordered_map<std::string, std::int64_t, Hash, std::equal_to<>> counts_;
};

}  // namespace attend::llm
