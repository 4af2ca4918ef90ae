// Perplexity: the mean loss of the rows a reference computed, window by window.
#include "llm/generate/perplexity.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "attend/error.hpp"
#include "golden_models.hpp"

namespace attend::llm::test {
namespace {

// -log p of each token but the first, from rows of logits.
std::vector<double> losses(std::span<const float> rows, std::span<const Token> tokens) {
  const std::size_t V = rows.size() / tokens.size();
  std::vector<double> result;
  for (std::size_t t = 0; t + 1 < tokens.size(); ++t) {
    double sum = 0;
    for (std::size_t v = 0; v < V; ++v) sum += std::exp(static_cast<double>(rows[t * V + v]));
    result.push_back(std::log(sum) - static_cast<double>(rows[t * V + static_cast<std::size_t>(tokens[t + 1])]));
  }
  return result;
}

TEST(Perplexity, IsThatOfTheReference) {
  const GoldenModel golden("llama");
  Transformer model = golden.load();
  const std::vector<Token> tokens = golden_tokens(model);
  const std::vector<double> expected = losses(golden.expected(), tokens);
  double mean = 0, variance = 0;
  for (const double loss : expected) mean += loss / 23;
  for (const double loss : expected) variance += (loss - mean) * (loss - mean) / 23;
  const Perplexity result = perplexity(model, tokens, 512, {});
  EXPECT_EQ(result.predicted, 23);
  EXPECT_NEAR(result.loss, mean, 1e-4);
  EXPECT_NEAR(result.perplexity, std::exp(mean), 1e-3 * std::exp(mean));
  EXPECT_NEAR(result.error, std::exp(mean) * std::sqrt(variance / 23), 1e-3 * std::exp(mean));
}

TEST(Perplexity, WindowsBeginAfresh) {
  Transformer model = GoldenModel("llama").load();
  const std::vector<Token> tokens = golden_tokens(model, 1000);
  for (const std::int64_t length : {2, 64, 300, 600, 999}) {
    double sum = 0;
    std::int64_t count = 0;
    for (std::int64_t first = 0; first < 1000; first += length) {
      const auto window = std::span(tokens).subspan(static_cast<std::size_t>(first),
                                                    static_cast<std::size_t>(std::min(length, 1000 - first)));
      for (const double loss : losses(run_alone(model, window, 1000, {.tokens = 1024}), window)) sum += loss, ++count;
    }
    std::int64_t reached = 0;
    const Perplexity result = perplexity(model, tokens, length, {}, [&](std::int64_t done) {
      EXPECT_GT(done, reached);
      reached = done;
    });
    EXPECT_EQ(result.predicted, count) << length;
    EXPECT_NEAR(result.loss, sum / static_cast<double>(count), 1e-6) << length;
    EXPECT_GE(reached, 999);
  }
}

TEST(Perplexity, ShortTextsPredictNothing) {
  Transformer model = GoldenModel("llama").load();
  const Token one[] = {1};
  EXPECT_EQ(perplexity(model, {}, 64, {}).predicted, 0);
  EXPECT_EQ(perplexity(model, one, 64, {}).predicted, 0);
  EXPECT_EQ(perplexity(model, golden_tokens(model), 1, {}).predicted, 0);
}

TEST(Perplexity, RefusesTokensOfNoVocabulary) {
  Transformer model = GoldenModel("llama").load();
  for (const std::size_t place : {0U, 5U, 511U, 512U, 599U})  // 512: the first of the second step
    for (const Token bad : {64, -1, 1 << 20}) {
      std::vector<Token> tokens = golden_tokens(model, 600);
      tokens[place] = bad;
      EXPECT_THROW(perplexity(model, tokens, 600, {}), InvalidArgument) << place << " " << bad;
    }
}

}  // namespace
}  // namespace attend::llm::test
