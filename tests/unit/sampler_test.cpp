// The choice of a token: each rule on distributions made by hand, and draws that follow the softmax.
#include "llm/generate/sampler.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "error_of.hpp"

namespace attend::llm {
namespace {

using attend::test::error_of;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
// Probabilities 1/2, 1/4, 1/8, 1/8 of tokens 2, 0, 1, 3.
const std::vector<float> kHalves = {std::log(0.25F), std::log(0.125F), std::log(0.5F), std::log(0.125F)};

Token pick(const std::vector<float>& logits, const Sampling& s, std::uint64_t index = 0) {
  return sample(logits, s, {}, {}, index).token;
}
// Every token that 400 draws give.
std::set<Token> drawn(const std::vector<float>& logits, Sampling s) {
  std::set<Token> tokens;
  if (s.temperature == 0) s.temperature = 1;
  for (std::uint64_t i = 0; i < 400; ++i) tokens.insert(pick(logits, s, i));
  return tokens;
}
using Set = std::set<Token>;

TEST(Sampler, GreedyTakesTheFirstOfTheLikeliest) {
  EXPECT_EQ(pick({1, 3, 2}, {}), 1);
  EXPECT_EQ(pick({1, 3, 3, 2, 3}, {}), 1);
  EXPECT_EQ(pick({-7}, {}), 0);
  EXPECT_EQ(pick({0, -0.0F, 0}, {}), 0);
  for (std::uint64_t seed = 0; seed < 5; ++seed) EXPECT_EQ(pick({1, 3, 3}, {.seed = seed}, seed), 1);
}

TEST(Sampler, TinyTemperaturesAreGreedy) {
  for (const double temperature : {1e-300, 1e-9, 1e-3})
    for (std::uint64_t i = 0; i < 50; ++i) EXPECT_EQ(pick({1, 3, 2.9F}, {.temperature = temperature}, i), 1);
  EXPECT_EQ(drawn({1, 3, 3}, {.temperature = 1e-300}), (Set{1, 2}));  // equals stay equal
  EXPECT_EQ(drawn({1, 3, -50}, {.temperature = 100}), (Set{0, 1, 2}));
}

TEST(Sampler, TopKKeepsTheLikeliest) {
  EXPECT_EQ(drawn(kHalves, {}), (Set{0, 1, 2, 3}));
  EXPECT_EQ(drawn(kHalves, {.top_k = 1}), (Set{2}));
  EXPECT_EQ(drawn(kHalves, {.top_k = 2}), (Set{0, 2}));
  EXPECT_EQ(drawn(kHalves, {.top_k = 3}), (Set{0, 1, 2}));  // of equals the smaller id
  EXPECT_EQ(drawn(kHalves, {.top_k = 99}), (Set{0, 1, 2, 3}));
}

TEST(Sampler, TopPKeepsThoseThatReachP) {
  EXPECT_EQ(drawn(kHalves, {.top_p = 0}), (Set{2}));
  EXPECT_EQ(drawn(kHalves, {.top_p = 0.49}), (Set{2}));
  EXPECT_EQ(drawn(kHalves, {.top_p = 0.51}), (Set{0, 2}));
  EXPECT_EQ(drawn(kHalves, {.top_p = 0.74}), (Set{0, 2}));
  EXPECT_EQ(drawn(kHalves, {.top_p = 0.76}), (Set{0, 1, 2}));
  EXPECT_EQ(drawn(kHalves, {.top_p = 1}), (Set{0, 1, 2, 3}));
}

TEST(Sampler, MinPKeepsThoseBesideTheLikeliest) {
  EXPECT_EQ(drawn(kHalves, {.min_p = 1}), (Set{2}));
  EXPECT_EQ(drawn(kHalves, {.min_p = 0.51}), (Set{2}));
  EXPECT_EQ(drawn(kHalves, {.min_p = 0.49}), (Set{0, 2}));
  EXPECT_EQ(drawn(kHalves, {.min_p = 0.24}), (Set{0, 1, 2, 3}));
}

// Tokens that reach p exactly are enough; one that is exactly as likely as min-p asks stays.
TEST(Sampler, TiesAndExactLimits) {
  const std::vector<float> equal = {0, 0, 0, 0};
  EXPECT_EQ(drawn(equal, {.top_p = 0.25}), (Set{0}));
  EXPECT_EQ(drawn(equal, {.top_p = 0.5}), (Set{0, 1}));
  EXPECT_EQ(drawn(equal, {.top_p = 0.75}), (Set{0, 1, 2}));
  EXPECT_EQ(drawn(equal, {.min_p = 1}), (Set{0, 1, 2, 3}));
  EXPECT_EQ(drawn(equal, {.top_k = 3}), (Set{0, 1, 2}));
  EXPECT_EQ(drawn(equal, {.top_k = 4}), (Set{0, 1, 2, 3}));
}

TEST(Sampler, ABiasIsAddedToItsTokens) {
  EXPECT_EQ(pick({1, 3, 2}, {.logit_bias = {{0, 2.5}}}), 0);
  EXPECT_EQ(pick({1, 3, 2}, {.logit_bias = {{0, 1.5}}}), 1);
  EXPECT_EQ(pick({1, 3, 2}, {.logit_bias = {{1, -2.5}}}), 2);
  EXPECT_EQ(pick({1, 3, 2}, {.logit_bias = {{0, 1.5}, {0, 1.5}}}), 0);
  EXPECT_EQ(pick({1, 3, 2}, {.logit_bias = {{3, 100}, {-1, 100}}}), 1);  // of no token here
  // It comes before the penalty, which is then a division.
  const Token seen[] = {0};
  const Sampling both{.repetition_penalty = 2, .logit_bias = {{0, 4}}};
  EXPECT_EQ(sample(std::vector<float>{-1, 1.4F}, both, seen, {}, 0).token, 0);
  EXPECT_EQ(sample(std::vector<float>{-1, 1.6F}, both, seen, {}, 0).token, 1);
}

TEST(Sampler, OnlyAllowedTokensCome) {
  const std::vector<float> logits = {1, 3, 2, 2.5F};
  const auto among = [&](std::vector<std::uint8_t> allowed, const Sampling& s = {}) {
    return sample(logits, s, {}, {}, 0, allowed).token;
  };
  EXPECT_EQ(among({1, 0, 1, 1}), 3);
  EXPECT_EQ(among({1, 0, 1}), 2);  // what has no entry may not come
  EXPECT_EQ(among({1, 0, 0, 0}, {.temperature = 50}), 0);
  EXPECT_EQ(error_of([&] { among({0, 0, 0, 0}); }), "sample: no token that may come has a finite logit");
}

TEST(Sampler, RulesComeInTheirOrder) {
  // Of the two that top-k leaves, the first has 2/3 of the weight.
  EXPECT_EQ(drawn(kHalves, {.top_k = 2, .top_p = 0.6}), (Set{2}));
  EXPECT_EQ(drawn(kHalves, {.top_p = 0.6}), (Set{0, 2}));
  // At temperature 1/2 the weights are 1, 1/4, 1/16, 1/16: the first has 0.727 of them.
  EXPECT_EQ(drawn(kHalves, {.temperature = 0.5, .top_p = 0.72}), (Set{2}));
  EXPECT_EQ(drawn(kHalves, {.temperature = 0.5, .top_p = 0.74}), (Set{0, 2}));
  EXPECT_EQ(drawn(kHalves, {.temperature = 0.5, .min_p = 0.26}), (Set{2}));
  // Penalties come first: the likeliest becomes the last.
  const Token seen[] = {2};
  EXPECT_EQ(sample(kHalves, {.temperature = 1, .top_k = 1, .presence_penalty = 10}, seen, seen, 0).token, 0);
}

TEST(Sampler, PenaltiesFollowTheSign) {
  const std::vector<float> logits = {4, 3, -1, -1.5F};
  const auto greedy = [&](const Sampling& s, std::vector<Token> seen, std::vector<Token> generated) {
    return sample(logits, s, seen, generated, 0).token;
  };
  EXPECT_EQ(greedy({.repetition_penalty = 1.3}, {0}, {}), 0);           // 4 / 1.3 = 3.08
  EXPECT_EQ(greedy({.repetition_penalty = 1.4}, {0}, {}), 1);           // 4 / 1.4 = 2.86
  EXPECT_EQ(greedy({.repetition_penalty = 1.3}, {0, 0, 0, 0}, {}), 0);  // once, however often it was seen
  EXPECT_EQ(greedy({.repetition_penalty = 0.5}, {1}, {}), 1);           // 3 / 0.5 = 6
  EXPECT_EQ(greedy({.repetition_penalty = 50}, {0, 1, 2}, {}), 0);      // 0.08, 0.06 and -50
  EXPECT_EQ(greedy({.presence_penalty = 0.9}, {0}, {0}), 0);
  EXPECT_EQ(greedy({.presence_penalty = 1.1}, {0}, {0}), 1);
  EXPECT_EQ(greedy({.presence_penalty = 1.1}, {0}, {}), 0);  // what was in the prompt alone is not punished
  EXPECT_EQ(greedy({.presence_penalty = -4.5}, {}, {2}), 0);
  EXPECT_EQ(greedy({.presence_penalty = -5.5}, {}, {2}), 2);
  EXPECT_EQ(greedy({.presence_penalty = 0.9}, {0}, {0, 0, 0}), 0);  // once, however often it was generated
  EXPECT_EQ(greedy({.frequency_penalty = 0.4}, {0}, {0, 0}), 0);    // each time: 4 - 0.8
  EXPECT_EQ(greedy({.frequency_penalty = 0.4}, {0}, {0, 0, 0}), 1);
  EXPECT_EQ(greedy({.frequency_penalty = 0.4}, {0, 0, 0}, {}), 0);
  EXPECT_EQ(greedy({.repetition_penalty = 1.4, .presence_penalty = 1}, {-3, 99, 0}, {99, -3}), 1);  // ids of no token
  const std::vector<float> below = {-1, -1.1F};
  const Token seen[] = {0};
  EXPECT_EQ(sample(below, {.repetition_penalty = 1.2}, seen, {}, 0).token, 1);
  // The logprob is the model's own.
  EXPECT_DOUBLE_EQ(sample(logits, {.repetition_penalty = 1.4}, seen, {}, 0).logprob,
                   sample(std::vector<float>{3, 4, -1, -1.5F},
                          {.temperature = 1, .top_k = 1, .repetition_penalty = 1.4}, std::vector<Token>{1}, {}, 0)
                       .logprob);
}

// A caller's setting wins over the model's files, and those over the defaults of chat and serve.
TEST(CompleteSampling, TheFirstThatStatesASettingWins) {
  const auto expect = [](const Sampling& got, const Sampling& expected) {
    EXPECT_EQ(got.temperature, expected.temperature);
    EXPECT_EQ(got.top_k, expected.top_k);
    EXPECT_EQ(got.top_p, expected.top_p);
    EXPECT_EQ(got.min_p, expected.min_p);
    EXPECT_EQ(got.repetition_penalty, expected.repetition_penalty);
  };
  expect(complete_sampling({}, {}),
         {.temperature = 0.7, .top_k = 0, .top_p = 0.9, .min_p = 0.05, .repetition_penalty = 1.05});
  const SamplingSettings model{.temperature = 0.6, .top_p = 0.95, .min_p = 0.0, .repetition_penalty = 1.2, .top_k = 20};
  expect(complete_sampling({}, model),
         {.temperature = 0.6, .top_k = 20, .top_p = 0.95, .min_p = 0, .repetition_penalty = 1.2});
  expect(complete_sampling({}, {.top_k = 40}),
         {.temperature = 0.7, .top_k = 40, .top_p = 0.9, .min_p = 0.05, .repetition_penalty = 1.05});
  const SamplingSettings given{.temperature = 1.5, .top_p = 1.0, .min_p = 0.1, .repetition_penalty = 1.0, .top_k = 0};
  expect(complete_sampling(given, model),
         {.temperature = 1.5, .top_k = 0, .top_p = 1, .min_p = 0.1, .repetition_penalty = 1});
  expect(complete_sampling({.top_p = 0.5}, model),
         {.temperature = 0.6, .top_k = 20, .top_p = 0.5, .min_p = 0, .repetition_penalty = 1.2});
}

TEST(CompleteSampling, TemperatureZeroIsGreedy) {
  EXPECT_EQ(complete_sampling({.temperature = 0.0}, {}).repetition_penalty, 1);
  EXPECT_EQ(complete_sampling({.temperature = 0.0}, {.repetition_penalty = 1.2}).repetition_penalty, 1);
  EXPECT_EQ(complete_sampling({}, {.temperature = 0.0, .repetition_penalty = 1.2}).repetition_penalty, 1);
  EXPECT_EQ(complete_sampling({.temperature = 0.0, .repetition_penalty = 1.3}, {}).repetition_penalty, 1.3);
}

TEST(Sampler, NumbersThatAreNotFiniteAreNeverChosen) {
  EXPECT_EQ(pick({kNan, 1, kInf, 2, -kInf}, {}), 3);
  EXPECT_EQ(drawn({kNan, 1, kInf, 2, -kInf}, {}), (Set{1, 3}));
  EXPECT_EQ(drawn({kNan, 1, kInf, 2, -kInf}, {.top_k = 4, .top_p = 0.99, .repetition_penalty = 1.1}), (Set{1, 3}));
  const Choice choice = sample(std::vector<float>{kNan, 1, kInf, 1}, {.logprobs = 5}, {}, {}, 0);
  EXPECT_NEAR(choice.logprob, std::log(0.5), 1e-12);
  ASSERT_EQ(choice.likeliest.size(), 2U);
  EXPECT_EQ(choice.likeliest[0].first, 1);
  EXPECT_EQ(choice.likeliest[1].first, 3);
  for (const std::vector<float>& bad : {std::vector<float>{}, {kNan}, {kInf, -kInf, kNan}})
    EXPECT_EQ(error_of([&] { pick(bad, {.temperature = 1}); }),
              "sample: no logit is a finite number; the model's weights are broken");
  // The largest numbers there are.
  const float most = std::numeric_limits<float>::max();
  EXPECT_EQ(drawn({most, -most, most}, {}), (Set{0, 2}));
  const Token all[] = {0, 1};
  for (const double temperature : {0.0, 1.0}) {
    EXPECT_EQ(sample(std::vector<float>{-most, -most},
                     {.temperature = temperature, .top_k = 1, .repetition_penalty = 100}, all, {}, 0)
                  .token,
              0);
    EXPECT_EQ(sample(std::vector<float>{most, most},
                     {.temperature = temperature, .top_k = 1, .repetition_penalty = 0.01}, all, {}, 0)
                  .token,
              0);
  }
}

TEST(Sampler, DrawsFollowTheSoftmax) {
  const std::vector<float> logits = {0.3F, -1, 2, 1.1F, 0, -0.4F, 1.9F, 0.7F};
  // The distance of 20,000 draws from a softmax at this temperature; 24.3 is passed once in 1000 times by chance.
  const auto chi_square = [&](double drawn_at, double expected_at) {
    constexpr int kDraws = 20000;
    std::vector<double> counts(logits.size()), weights;
    for (std::uint64_t i = 0; i < kDraws; ++i)
      ++counts[static_cast<std::size_t>(pick(logits, {.temperature = drawn_at, .seed = 42}, i))];
    double sum = 0, distance = 0;
    for (const float x : logits) sum += weights.emplace_back(std::exp(static_cast<double>(x) / expected_at));
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const double expected = kDraws * weights[i] / sum;
      distance += (counts[i] - expected) * (counts[i] - expected) / expected;
    }
    return distance;
  };
  EXPECT_LT(chi_square(1, 1), 24.3);
  EXPECT_LT(chi_square(0.7, 0.7), 24.3);
  EXPECT_LT(chi_square(2, 2), 24.3);
  EXPECT_GT(chi_square(1, 1.1), 24.3);
}

TEST(Sampler, TheSameSeedAndNumberGiveTheSameDraw) {
  const std::vector<float> flat(1000, 0.0F);
  std::set<Token> of_seeds, of_numbers;
  for (std::uint64_t i = 0; i < 20; ++i) {
    const Token token = pick(flat, {.temperature = 1, .seed = 5}, i);
    EXPECT_EQ(pick(flat, {.temperature = 1, .seed = 5}, i), token);
    of_numbers.insert(token);
    of_seeds.insert(pick(flat, {.temperature = 1, .seed = i}, 3));
  }
  EXPECT_GT(of_numbers.size(), 15U);
  EXPECT_GT(of_seeds.size(), 15U);
}

TEST(Sampler, ReportsTheLikeliest) {
  const Choice choice = sample(kHalves, {.logprobs = 3}, {}, {}, 0);
  ASSERT_EQ(choice.likeliest.size(), 3U);
  const std::pair<Token, double> expected[] = {{2, 0.5}, {0, 0.25}, {1, 0.125}};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(choice.likeliest[i].first, expected[i].first);
    EXPECT_NEAR(choice.likeliest[i].second, std::log(expected[i].second), 1e-6);
  }
  EXPECT_NEAR(choice.logprob, std::log(0.5), 1e-6);
  EXPECT_TRUE(sample(kHalves, {}, {}, {}, 0).likeliest.empty());
  for (std::uint64_t i = 0; i < 20; ++i) {  // asking for them changes nothing
    EXPECT_EQ(pick(kHalves, {.temperature = 1, .logprobs = 2}, i), pick(kHalves, {.temperature = 1}, i));
  }
}

TEST(Sampler, BadSettingsAreNamed) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::pair<Sampling, const char*> cases[] = {
      {{.temperature = -0.1}, "temperature is -0.1"},
      {{.temperature = nan}, "temperature is nan"},
      {{.temperature = 101}, "temperature is 101"},
      {{.top_k = -1}, "top_k is -1"},
      {{.top_p = 1.01}, "top_p is 1.01"},
      {{.top_p = -0.5}, "top_p is -0.5"},
      {{.min_p = 2}, "min_p is 2"},
      {{.repetition_penalty = 0}, "repetition_penalty is 0"},
      {{.repetition_penalty = nan}, "repetition_penalty is nan"},
      {{.presence_penalty = 101}, "presence_penalty is 101"},
      {{.logprobs = -1}, "logprobs is -1"},
      {{.logprobs = 101}, "logprobs is 101"},
  };
  for (const auto& [sampling, text] : cases) {
    const std::string error = error_of([&s = sampling] { check_sampling(s); });
    EXPECT_TRUE(error.starts_with(text)) << error << "\nexpected " << text;
  }
  EXPECT_EQ(error_of([] { check_sampling({}); }), "");
}

}  // namespace
}  // namespace attend::llm
