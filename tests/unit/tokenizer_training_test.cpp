// A byte-level BPE learnt from text.
#include "llm/train/train_tokenizer.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "training_files.hpp"

namespace attend::llm::test {
namespace {

Tokenizer made(const SpelledTokenizer& spelled) {
  return tokenizer_from_json(tokenizer_json(spelled), "learnt");
}
SpelledTokenizer stories(std::int64_t vocabulary, const char* pre = "smollm") {
  TokenizerTrainer trainer(pre);
  for (std::int64_t n = 0; n < 100; ++n) trainer.add(corpus_line({}, n));
  return trainer.train({.vocabulary = vocabulary});
}

// Words "low" 5, " lower" 2, " newest" 6, " widest" 3, as in the paper that brought BPE to text. The pairs "es" and
// "st" occur 9 times each: the smaller ids are merged first.
TEST(TokenizerTraining, MergesWhatAHandMerges) {
  TokenizerTrainer trainer("gpt-2");
  for (int n = 0; n < 5; ++n) trainer.add("low");
  for (int n = 0; n < 2; ++n) trainer.add(" lower");
  for (int n = 0; n < 6; ++n) trainer.add(" newest");
  for (int n = 0; n < 3; ++n) trainer.add(" widest");
  EXPECT_EQ(trainer.words(), 4);
  const SpelledTokenizer spelled = trainer.train({.vocabulary = 256 + 3 + 6});
  EXPECT_EQ(spelled.merges, (std::vector<std::string>{"e s", "es t", "l o", "lo w", "e w", "n ew"}));
  EXPECT_EQ(spelled.tokens.size(), 265U);
  EXPECT_EQ(spelled.tokens[0], "<|endoftext|>");
  EXPECT_EQ(spelled.tokens[2], "<|im_end|>");
  EXPECT_EQ(spelled.tokens[259], "es");
}

TEST(TokenizerTraining, DoesNotDependOnTheOrderOfTheTexts) {
  TokenizerTrainer forth, back;
  for (std::int64_t n = 0; n < 60; ++n) forth.add(corpus_line({}, n)), back.add(corpus_line({}, 59 - n));
  EXPECT_EQ(forth.train({.vocabulary = 700}).merges, back.train({.vocabulary = 700}).merges);
}

TEST(TokenizerTraining, LearnsTheSameMergesEverywhere) {
  const std::vector<std::string> merges = stories(400).merges;
  ASSERT_GE(merges.size(), 12U);
  EXPECT_EQ(std::vector(merges.begin(), merges.begin() + 12),
            (std::vector<std::string>{"ï ¼", "h e", "ã Ģ", "ãĢ Ĥ", "Ġ t", "ä ¸", "ç ļ", "° ı", "å °ı", "çļ Ħ", "Ġ a",
                                      "ï¼ Į"}));
}

TEST(TokenizerTraining, KeepsDigitsApartIfToldSo) {
  TokenizerTrainer together("gpt-2"), apart("smollm");
  for (int n = 0; n < 50; ++n) together.add("1234 1234"), apart.add("1234 1234");
  EXPECT_EQ(made(together.train({.vocabulary = 262})).encode("1234").size(), 1U);
  EXPECT_EQ(made(apart.train({.vocabulary = 300})).encode("1234").size(), 4U);
  expect_in(refusal_of([] { TokenizerTrainer("words"); }), "expected \"gpt-2\" or \"smollm\"");
}

TEST(TokenizerTraining, GivesBackAnyText) {
  const Tokenizer tokenizer = made(stories(600));
  EXPECT_EQ(tokenizer.vocabulary(), 600);
  std::vector<std::string> texts = {"",
                                    " ",
                                    "\n\n\t ",
                                    std::string(1, '\0'),
                                    "<|im_end|> <|unknown|>",
                                    "你好，世界。",
                                    "a\u0301\u200d👩‍👩‍👧"};
  std::string ascii, wide;
  for (char c = 1; c < 127; ++c) ascii += c;
  for (int c = 0x80; c < 0x800; c += 7) wide += {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
  texts.push_back(ascii);
  texts.push_back(wide);
  for (std::int64_t n = 1000; n < 1020; ++n) texts.push_back(corpus_line({}, n));
  for (const std::string& text : texts) EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, true, false)), text);
  // Each byte has a token of its own: nothing is unknown.
  for (int byte = 0; byte < 256; ++byte) EXPECT_TRUE(tokenizer.find(std::string(1, static_cast<char>(byte)))) << byte;
  EXPECT_EQ(tokenizer.encode("<|im_end|>"), std::vector<Token>{2});
}

TEST(TokenizerTraining, EndsWhereNothingRepeats) {
  TokenizerTrainer trainer;
  trainer.add("abcdef");
  EXPECT_TRUE(trainer.train({.vocabulary = 1000}).merges.empty());
  EXPECT_EQ(trainer.train({.vocabulary = 1000, .least_count = 1}).merges.size(), 5U);
  EXPECT_TRUE(TokenizerTrainer().train({.vocabulary = 259}).merges.empty());
  expect_in(refusal_of([&] { (void)trainer.train({.vocabulary = 258}); }),
            "a vocabulary of 258, expected at least 259");
}

TEST(TokenizerTraining, IsNotSlowedByOneLongWord) {
  TokenizerTrainer trainer;
  trainer.add(std::string(200000, 'a'));
  const SpelledTokenizer spelled = trainer.train({.vocabulary = 290});
  EXPECT_EQ(spelled.merges.front(), "a a");
  EXPECT_EQ(made(spelled).decode(made(spelled).encode(std::string(1000, 'a'))), std::string(1000, 'a'));
}

}  // namespace
}  // namespace attend::llm::test
