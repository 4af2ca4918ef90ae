// The translators of the lab "before attention": gradients against central differences, and what they translate.
#include <gtest/gtest.h>

#include <cmath>

#include "labs/before_attention/phrases.hpp"
#include "labs/before_attention/seq2seq.hpp"

namespace attend::labs {
namespace {

class TranslatorGradients : public ::testing::TestWithParam<Bridge> {};

TEST_P(TranslatorGradients, AreThoseOfCentralDifferences) {
  const PhraseWords english(false), chinese(true);
  Translator model({.source_words = english.count(),
                    .target_words = chinese.count(),
                    .width = 4,
                    .bridge = GetParam(),
                    .dtype = DType::f64});
  // Two lines of different length: padding is in it.
  const TranslationBatch batch = batch_of({date_pair(2021, 3, 15), number_pair(7205)}, true);
  const double loss = model.loss_and_gradients(batch);
  EXPECT_NEAR(loss, model.loss(batch), 1e-12);
  const auto parameters = model.parameters(), gradients = model.gradients();
  ASSERT_EQ(parameters.size(), gradients.size());
  double seen = 0;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const std::int64_t step = std::max<std::int64_t>(1, parameters[p]->size() / 23);
    for (std::int64_t n = 0; n < parameters[p]->size(); n += step) {
      double& w = parameters[p]->data<double>()[n];
      const double kept = w, h = 1e-5;
      w = kept + h;
      const double above = model.loss(batch);
      w = kept - h;
      const double below = model.loss(batch);
      w = kept;
      const double expected = (above - below) / (2 * h), got = gradients[p]->data<double>()[n];
      EXPECT_NEAR(got, expected, 1e-7 + 1e-5 * std::abs(expected)) << "parameter " << p << " element " << n;
      seen += std::abs(expected);
    }
  }
  EXPECT_GT(seen, 0.1);  // something was there to be compared
}
INSTANTIATE_TEST_SUITE_P(Bridges, TranslatorGradients,
                         ::testing::Values(Bridge::none, Bridge::additive, Bridge::general));

std::string joined(const Phrase& phrase, const char* between) {
  std::string text;
  for (const std::string& word : phrase) text += (text.empty() ? "" : between) + word;
  return text;
}

TEST(LabPhrases, AreProperEnglishAndChinese) {
  const std::pair<int, const char*> numbers[] = {{5, "五"},
                                                 {10, "十"},
                                                 {15, "十五"},
                                                 {20, "二十"},
                                                 {99, "九十九"},
                                                 {100, "一百"},
                                                 {105, "一百零五"},
                                                 {115, "一百一十五"},
                                                 {1000, "一千"},
                                                 {1005, "一千零五"},
                                                 {1050, "一千零五十"},
                                                 {1015, "一千零一十五"},
                                                 {7235, "七千二百三十五"},
                                                 {3300, "三千三百"}};
  for (const auto& [number, chinese] : numbers) EXPECT_EQ(joined(number_pair(number).chinese, ""), chinese) << number;
  EXPECT_EQ(joined(number_pair(7235).english, " "), "seven thousand two hundred thirty five");
  EXPECT_EQ(joined(number_pair(13).english, " "), "thirteen");
  const PhrasePair date = date_pair(2021, 12, 25);
  EXPECT_EQ(joined(date.english, " "), "december 25 2 0 2 1");
  EXPECT_EQ(joined(date.chinese, ""), "二零二一年十二月二十五日");
}

TEST(LabPhrases, EveryWordOfEveryPhraseIsKnown) {
  for (std::uint64_t seed = 0; seed < 200; ++seed)
    EXPECT_NO_THROW(batch_of({random_pair(1 + static_cast<std::int64_t>(seed % 4), seed)}, seed % 2 == 0));
  for (int n = 1; n <= 9999; ++n) EXPECT_NO_THROW(batch_of({number_pair(n)}, true)) << n;
}

TEST(LabTranslator, AlignmentsAreWeights) {
  const PhraseWords english(false), chinese(true);
  for (const Bridge bridge : {Bridge::additive, Bridge::general}) {
    const Translator model(
        {.source_words = english.count(), .target_words = chinese.count(), .width = 8, .bridge = bridge});
    const TranslationBatch batch = batch_of({date_pair(1999, 1, 2), number_pair(3)}, true);
    const Tensor weights = model.alignment(batch);
    const std::int64_t N = batch.source_length;
    for (std::int64_t r = 0; r < weights.size() / N; ++r) {
      double sum = 0;
      for (std::int64_t j = 0; j < N; ++j) {
        const float w = weights.data<float>()[r * N + j];
        sum += static_cast<double>(w);
        if (r >= batch.target_length && j >= 1) {
          EXPECT_EQ(w, 0.0F);  // padding of the second line
        }
      }
      EXPECT_NEAR(sum, 1, 1e-5);
    }
  }
}

}  // namespace
}  // namespace attend::labs
