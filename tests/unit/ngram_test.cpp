// Losses of counting models, against numbers worked out by hand.
#include "llm/train/ngram.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "training_files.hpp"

namespace attend::llm::test {
namespace {

// Two documents of which one is held out: what is counted and what is predicted are alike whichever it is.
TEST(Ngram, IsWhatAHandComputes) {
  const ListOfDocuments documents({{0, 1, 2, 1, 2}, {0, 1, 2, 1, 2}});
  const NgramLosses losses = ngram_losses(DocumentSplit(documents, 0.5, 1), 3, 1000);
  EXPECT_EQ(losses.counted, 5);
  EXPECT_EQ(losses.predicted, 4);
  // Counts are 1, 2, 2 of 5, and one more for each of 3: tokens 1 and 2 have 3/8.
  const double one = 3.0 / 8;
  EXPECT_NEAR(losses.unigram, -std::log(one), 1e-12);
  const double after0 = 0.25 + 0.75 * one;                      // 0 was seen once, before 1
  const double after1 = (1.25 + 0.75 * one) / 2;                // 1 twice, both times before 2
  const double after2 = 0.25 + 0.75 * one;                      // 2 once, before 1 (the second one ends the document)
  const auto third = [](double p) { return 0.25 + 0.75 * p; };  // every pair was seen once
  const double sum = std::log(after0) + std::log(third(after1)) + std::log(third(after2)) + std::log(third(after1));
  EXPECT_NEAR(losses.trigram, -sum / 4, 1e-12);
}

TEST(Ngram, FallsBackWhereNothingWasSeen) {
  const ListOfDocuments documents({{0, 1}, {2, 3}});
  const NgramLosses losses = ngram_losses(DocumentSplit(documents, 0.5, 1), 4, 1000);
  EXPECT_NEAR(losses.unigram, std::log(6.0), 1e-12);
  EXPECT_NEAR(losses.trigram, std::log(6.0), 1e-12);
}

TEST(Ngram, PredictsOnlyWhatIsToBeLearnt) {
  const ListOfDocuments documents({{~0, ~1, 2}, {~0, ~1, 2}});
  const NgramLosses losses = ngram_losses(DocumentSplit(documents, 0.5, 1), 3, 1000);
  EXPECT_EQ(losses.counted, 3);
  EXPECT_EQ(losses.predicted, 1);
  EXPECT_NEAR(losses.unigram, std::log(3.0), 1e-12);
}

TEST(Ngram, CountsNoMoreThanAsked) {
  const ListOfDocuments documents(std::vector<std::vector<std::int32_t>>(100, {0, 1, 2, 3}));
  const NgramLosses losses = ngram_losses(DocumentSplit(documents, 0.5, 1), 4, 10);
  EXPECT_LT(losses.counted, 16);
  EXPECT_LT(losses.predicted, 16);
  const NgramLosses none = ngram_losses(DocumentSplit(documents, 0, 1), 4, 10);
  EXPECT_EQ(none.predicted, 0);
  EXPECT_EQ(none.unigram, 0);
}

}  // namespace
}  // namespace attend::llm::test
