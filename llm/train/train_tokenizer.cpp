// Byte-pair encoding learnt: words as lists of tokens, a heap of pairs by count, and for each pair the words it is in.
#include "llm/train/train_tokenizer.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <queue>
#include <utility>

#include "attend/error.hpp"
#include "llm/text/bpe.hpp"
#include "llm/text/unicode.hpp"

namespace attend::llm {
namespace {

using Pair = std::pair<Token, Token>;

constexpr std::size_t kLongestToken = 4096;  // bytes as it is spelled; readers refuse tokens without end

std::uint64_t key_of(Pair pair) {
  return (std::uint64_t{static_cast<std::uint32_t>(pair.first)} << 32) | static_cast<std::uint32_t>(pair.second);
}

struct Word {
  std::vector<Token> tokens;
  std::int64_t count;
};

struct Candidate {
  std::int64_t count;
  Pair pair;
  // The heap gives the most frequent first, and of equals the one with the smaller ids.
  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

struct Seen {
  std::int64_t count = 0;
  std::vector<std::uint32_t> words;  // where it occurs, or did; rising, some twice
};

class Merger {
 public:
  explicit Merger(std::vector<Word> words) : words_(std::move(words)) {
    for (std::uint32_t w = 0; w < words_.size(); ++w)
      for (std::size_t i = 0; i + 1 < words_[w].tokens.size(); ++i)
        change({words_[w].tokens[i], words_[w].tokens[i + 1]}, 1, w);
    push_changed();
  }

  // The most frequent pair, if it occurs at least so often.
  bool next(std::int64_t least, Pair& pair) {
    while (!heap_.empty()) {
      const Candidate top = heap_.top();
      const std::int64_t now = seen_[key_of(top.pair)].count;
      if (now == top.count) {
        if (now < least) return false;
        heap_.pop();
        pair = top.pair;
        return true;
      }
      heap_.pop();  // merges since have taken some of it
      if (now > 0) heap_.push({now, top.pair});
    }
    return false;
  }

  void merge(Pair pair, Token result) {
    const std::vector<std::uint32_t> words = std::move(seen_[key_of(pair)].words);
    for (std::size_t i = 0; i < words.size(); ++i)
      if (i == 0 || words[i] != words[i - 1]) merge_in(words[i], pair, result);
    push_changed();
  }

 private:
  void change(Pair pair, std::int64_t by, std::uint32_t word) {
    Seen& seen = seen_[key_of(pair)];
    seen.count += by * words_[word].count;
    if (by < 0) return;
    if (seen.words.empty() || seen.words.back() != word) seen.words.push_back(word);
    changed_.push_back(pair);
  }

  void merge_in(std::uint32_t w, Pair pair, Token result) {
    std::vector<Token>& tokens = words_[w].tokens;
    std::size_t out = 0;
    for (std::size_t i = 0; i < tokens.size();) {
      if (i + 1 >= tokens.size() || tokens[i] != pair.first || tokens[i + 1] != pair.second) {
        tokens[out++] = tokens[i++];
        continue;
      }
      if (out > 0) {
        change({tokens[out - 1], pair.first}, -1, w);
        change({tokens[out - 1], result}, 1, w);
      }
      i += 2;
      if (i < tokens.size()) {
        change({pair.second, tokens[i]}, -1, w);
        change({result, tokens[i]}, 1, w);
      }
      tokens[out++] = result;
    }
    tokens.resize(out);
  }

  void push_changed() {
    std::sort(changed_.begin(), changed_.end());
    changed_.erase(std::unique(changed_.begin(), changed_.end()), changed_.end());
    for (const Pair& pair : changed_)
      if (const std::int64_t count = seen_[key_of(pair)].count; count > 0) heap_.push({count, pair});
    changed_.clear();
  }

  std::vector<Word> words_;
  std::unordered_map<std::uint64_t, Seen> seen_;
  std::priority_queue<Candidate> heap_;
  std::vector<Pair> changed_;
};

std::vector<Split> cuts_of(const std::string& pre) {
  if (pre == "gpt-2") return {Split::gpt2};
  if (pre == "smollm") return {Split::digits_individual, Split::gpt2};
  throw InvalidArgument("tokenizer training: words are cut as \"" + pre + "\", expected \"gpt-2\" or \"smollm\"");
}

}  // namespace

TokenizerTrainer::TokenizerTrainer(std::string pre) : pre_(std::move(pre)), cut_(cuts_of(pre_)) {}

void TokenizerTrainer::add(std::string_view text) {
  const std::string whole = utf8_repaired(text);
  PreTokenizer::Words words;
  std::deque<std::string> made;
  cut_.split(whole, words, made);
  for (const std::string_view word : words) {
    const auto found = counts_.find(word);
    if (found != counts_.end())
      ++found->second;
    else
      counts_.emplace(word, 1);
  }
}

SpelledTokenizer TokenizerTrainer::train(const TokenizerTraining& training, const Progress& progress) const {
  const std::int64_t fixed = std::ssize(training.special) + 256;
  if (training.vocabulary < fixed)
    throw InvalidArgument("tokenizer training: a vocabulary of " + std::to_string(training.vocabulary) +
                          ", expected at least " + std::to_string(fixed) + ": 256 bytes and " +
                          std::to_string(training.special.size()) + " special tokens");
  SpelledTokenizer spelled{pre_, training.special, {}, {}};
  for (std::size_t i = 0; i < training.special.size(); ++i) spelled.special.push_back(static_cast<Token>(i));

  // The bytes, in the order of the characters that stand for them.
  std::vector<std::pair<std::string, unsigned char>> bytes;
  for (int b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    bytes.emplace_back(byte_level_of_bytes({&byte, 1}), static_cast<unsigned char>(b));
  }
  std::sort(bytes.begin(), bytes.end());
  std::array<Token, 256> token_of{};
  std::unordered_map<std::string, Token> ids;
  for (const std::string& text : training.special) ids.emplace(text, static_cast<Token>(ids.size()));
  for (const auto& [text, byte] : bytes) {
    token_of[byte] = static_cast<Token>(spelled.tokens.size());
    ids.emplace(text, token_of[byte]);
    spelled.tokens.push_back(text);
  }

  std::vector<Word> words;
  words.reserve(counts_.size());
  for (const auto& [text, count] : counts_) {
    Word word{{}, count};
    for (const char byte : text) word.tokens.push_back(token_of[static_cast<unsigned char>(byte)]);
    words.push_back(std::move(word));
  }
  Merger merger(std::move(words));
  Pair pair;
  while (std::ssize(spelled.tokens) < training.vocabulary &&
         merger.next(std::max<std::int64_t>(1, training.least_count), pair)) {
    const std::string &left = spelled.tokens[static_cast<std::size_t>(pair.first)],
                      &right = spelled.tokens[static_cast<std::size_t>(pair.second)];
    if (left.size() + right.size() > kLongestToken) continue;
    spelled.merges.push_back(left + " " + right);
    const auto [found, is_new] = ids.try_emplace(left + right, static_cast<Token>(spelled.tokens.size()));
    const Token result = found->second;
    if (is_new) spelled.tokens.push_back(found->first);
    merger.merge(pair, result);
    if (progress && spelled.tokens.size() % 256 == 0) progress(std::ssize(spelled.tokens), training.vocabulary);
  }
  return spelled;
}

}  // namespace attend::llm
