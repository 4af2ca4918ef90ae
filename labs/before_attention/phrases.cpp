// Small things to translate: dates and numbers, English and Chinese.
#include "labs/before_attention/phrases.hpp"

#include <algorithm>
#include <array>
#include <stdexcept>

#include "base/random.hpp"

namespace attend::labs {
namespace {

const std::array<const char*, 20> kSmall = {
    "zero", "one",    "two",    "three",    "four",     "five",    "six",     "seven",     "eight",    "nine",
    "ten",  "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"};
const std::array<const char*, 10> kTens = {"",      "",      "twenty",  "thirty", "forty",
                                           "fifty", "sixty", "seventy", "eighty", "ninety"};
const std::array<const char*, 10> kDigits = {"零", "一", "二", "三", "四", "五", "六", "七", "八", "九"};
const std::array<const char*, 12> kMonths = {"january", "february", "march",     "april",   "may",      "june",
                                             "july",    "august",   "september", "october", "november", "december"};

// 1 to 99, as counted: 十五, 二十一.
void count_chinese(int number, Phrase& out) {
  if (number >= 20) out.emplace_back(kDigits[static_cast<std::size_t>(number / 10)]);
  if (number >= 10) out.emplace_back("十");
  if (number % 10 != 0) out.emplace_back(kDigits[static_cast<std::size_t>(number % 10)]);
}

void append(Phrase& to, const Phrase& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

PhrasePair date_pair(int year, int month, int day) {
  PhrasePair pair;
  pair.english = {kMonths[static_cast<std::size_t>(month - 1)], std::to_string(day)};
  for (const char digit : std::to_string(year)) {
    pair.english.emplace_back(1, digit);
    pair.chinese.emplace_back(kDigits[static_cast<std::size_t>(digit - '0')]);
  }
  pair.chinese.emplace_back("年");
  count_chinese(month, pair.chinese);
  pair.chinese.emplace_back("月");
  count_chinese(day, pair.chinese);
  pair.chinese.emplace_back("日");
  return pair;
}

PhrasePair number_pair(int number) {
  PhrasePair pair;
  const int thousands = number / 1000, hundreds = number / 100 % 10, rest = number % 100;
  const auto english = [&](const char* word) { pair.english.emplace_back(word); };
  const auto chinese = [&](const char* word) { pair.chinese.emplace_back(word); };
  if (thousands > 0) {
    english(kSmall[static_cast<std::size_t>(thousands)]);
    english("thousand");
    chinese(kDigits[static_cast<std::size_t>(thousands)]);
    chinese("千");
  }
  if (hundreds > 0) {
    english(kSmall[static_cast<std::size_t>(hundreds)]);
    english("hundred");
    chinese(kDigits[static_cast<std::size_t>(hundreds)]);
    chinese("百");
  }
  if (rest >= 20) english(kTens[static_cast<std::size_t>(rest / 10)]);
  if (rest > 0 && rest < 20) english(kSmall[static_cast<std::size_t>(rest)]);
  if (rest >= 20 && rest % 10 > 0) english(kSmall[static_cast<std::size_t>(rest % 10)]);
  // 一千零五, 七百零三, 三千零二十: one 零 for places left out before something that follows.
  const bool gap = (thousands > 0 && hundreds == 0 && rest > 0) || (hundreds > 0 && rest > 0 && rest < 10);
  if (gap) chinese("零");
  const bool inside = thousands > 0 || hundreds > 0;
  if (inside && rest >= 10 && rest < 20) chinese("一");  // 一百一十五, but 十五 alone
  if (rest > 0) count_chinese(rest, pair.chinese);
  return pair;
}

PhrasePair random_pair(std::int64_t items, std::uint64_t seed) {
  PhrasePair all;
  for (std::int64_t n = 0; n < items; ++n) {
    const auto pick = [&](std::uint64_t which, int options) {
      return static_cast<int>(uniform(seed, static_cast<std::uint64_t>(n) * 8 + which) * options);
    };
    const PhrasePair one = pick(0, 2) == 0 ? date_pair(1900 + pick(1, 200), 1 + pick(2, 12), 1 + pick(3, 28))
                                           : number_pair(1 + pick(4, 9999));
    if (n > 0) {
      all.english.emplace_back(",");
      all.chinese.emplace_back("，");
    }
    append(all.english, one.english);
    append(all.chinese, one.chinese);
  }
  return all;
}

PhraseWords::PhraseWords(bool chinese) {
  words_.emplace_back("<>");
  if (chinese) {
    words_.insert(words_.end(), kDigits.begin(), kDigits.end());
    for (const char* word : {"十", "百", "千", "年", "月", "日", "，"}) words_.emplace_back(word);
    return;
  }
  words_.insert(words_.end(), kSmall.begin(), kSmall.end());
  words_.insert(words_.end(), kTens.begin() + 2, kTens.end());
  words_.insert(words_.end(), kMonths.begin(), kMonths.end());
  for (const char* word : {"hundred", "thousand", ","}) words_.emplace_back(word);
  for (int n = 0; n <= 31; ++n) words_.push_back(std::to_string(n));
}

std::int64_t PhraseWords::id(const std::string& word) const {
  const auto found = std::find(words_.begin(), words_.end(), word);
  if (found == words_.end()) throw std::logic_error("no such word: " + word);
  return found - words_.begin();
}

TranslationBatch batch_of(const std::vector<PhrasePair>& pairs, bool to_chinese) {
  static const PhraseWords kEnglish(false), kChinese(true);
  const PhraseWords &from = to_chinese ? kEnglish : kChinese, &to = to_chinese ? kChinese : kEnglish;
  TranslationBatch batch;
  batch.batch = static_cast<std::int64_t>(pairs.size());
  for (const PhrasePair& pair : pairs) {
    const Phrase &source = to_chinese ? pair.english : pair.chinese, &target = to_chinese ? pair.chinese : pair.english;
    batch.source_length = std::max(batch.source_length, static_cast<std::int64_t>(source.size()));
    batch.target_length = std::max(batch.target_length, static_cast<std::int64_t>(target.size()) + 1);
  }
  for (const PhrasePair& pair : pairs) {
    const Phrase &source = to_chinese ? pair.english : pair.chinese, &target = to_chinese ? pair.chinese : pair.english;
    batch.source_lengths.push_back(static_cast<std::int64_t>(source.size()));
    for (std::int64_t n = 0; n < batch.source_length; ++n)
      batch.source.push_back(n < batch.source_lengths.back() ? from.id(source[static_cast<std::size_t>(n)]) : 0);
    const auto words = static_cast<std::int64_t>(target.size());
    for (std::int64_t n = 0; n < batch.target_length; ++n) {
      batch.inputs.push_back(n == 0 || n > words ? 0 : to.id(target[static_cast<std::size_t>(n - 1)]));
      batch.targets.push_back(n < words ? to.id(target[static_cast<std::size_t>(n)]) : n == words ? 0 : -100);
    }
  }
  return batch;
}

}  // namespace attend::labs
