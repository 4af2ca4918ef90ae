// Cuts a text into the words that a model takes one by one.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace attend::llm {

enum class Split {
  gpt2,               // ByteLevel with its own pattern
  llama3,             // numbers in threes, letters with one other character before them
  qwen2,              // the same with each digit alone
  qwen35,             // the same with marks among the letters
  tekken,             // Mistral's: words break before a capital
  digits,             // runs of digits apart
  digits_individual,  // each digit apart
  bert,               // white space removed, punctuation apart
  prefix_space,       // no cut: a space put before a text that has none
};

// The pattern of a tokenizer.json `Split`, if it is one of those above.
std::optional<Split> split_of_pattern(std::string_view regex);
std::vector<std::string> known_patterns();

class PreTokenizer {
 public:
  using Words = std::vector<std::string_view>;

  PreTokenizer() = default;
  explicit PreTokenizer(std::vector<Split> steps) : steps_(std::move(steps)) {}

  // Whole UTF-8. Each step cuts what the one before left. `words` are views into `text` or into `made`.
  void split(std::string_view text, Words& words, std::deque<std::string>& made) const;

 private:
  std::vector<Split> steps_;
};

}  // namespace attend::llm
