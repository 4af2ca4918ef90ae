// Small things to translate, made here: dates and numbers, English and Chinese.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "labs/before_attention/seq2seq.hpp"

namespace attend::labs {

using Phrase = std::vector<std::string>;  // words

struct PhrasePair {
  Phrase english, chinese;
};

// "march 3 2 0 2 1" and "二 零 二 一 年 三 月 三 日": the year stands last here and first there.
PhrasePair date_pair(int year, int month, int day);
// "seven thousand two hundred thirty five" and "七 千 二 百 三 十 五"; 1 to 9999.
PhrasePair number_pair(int number);
// `items` dates and numbers one after the other.
PhrasePair random_pair(std::int64_t items, std::uint64_t seed);

// All words of either side, with numbers; 0 is the start, and the end.
class PhraseWords {
 public:
  explicit PhraseWords(bool chinese);
  std::int64_t count() const { return static_cast<std::int64_t>(words_.size()); }
  std::int64_t id(const std::string& word) const;
  const std::string& word(std::int64_t id) const { return words_[static_cast<std::size_t>(id)]; }

 private:
  std::vector<std::string> words_;
};

// Pairs as a batch, from English to Chinese or back.
TranslationBatch batch_of(const std::vector<PhrasePair>& pairs, bool to_chinese);

}  // namespace attend::labs
