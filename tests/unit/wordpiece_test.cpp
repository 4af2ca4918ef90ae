// WordPiece, its normalizer and its decoder.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "llm/text/normalizer.hpp"
#include "llm/text/unicode.hpp"
#include "llm/text/wordpiece.hpp"
#include "tokenizer_files.hpp"

namespace attend::llm {
namespace {

using Tokens = std::vector<std::int32_t>;

Tokens encode(const WordPiece& model, const std::string& word) {
  Tokens tokens;
  model.encode(word, tokens);
  return tokens;
}

TEST(WordPiece, TakesTheLongestPiece) {
  const std::vector<std::pair<std::string_view, std::int32_t>> vocabulary = {{"[UNK]", 0}, {"un", 1},     {"unaff", 2},
                                                                             {"##aff", 3}, {"##able", 4}, {"##a", 5},
                                                                             {"##ble", 6}, {"你", 7},     {"##好", 8}};
  const WordPiece model(vocabulary, "##", 0, 10);
  EXPECT_EQ(encode(model, "unaffable"), (Tokens{2, 4}));
  EXPECT_EQ(encode(model, "unable"), (Tokens{1, 4}));
  EXPECT_EQ(encode(model, "una"), (Tokens{1, 5}));
  EXPECT_EQ(encode(model, "unx"), (Tokens{0}));   // one bad end spoils the word
  EXPECT_EQ(encode(model, "able"), (Tokens{0}));  // only a continuation
  EXPECT_EQ(encode(model, "你好"), (Tokens{7, 8}));
  EXPECT_EQ(encode(model, "你好你"), (Tokens{0}));
  EXPECT_EQ(encode(model, "unaaaaaaaa"), (Tokens{1, 5, 5, 5, 5, 5, 5, 5, 5}));  // ten characters
  EXPECT_EQ(encode(model, "unaaaaaaaaa"), (Tokens{0}));                         // eleven
}

TEST(WordPiece, NormalisesAsBert) {
  const Normalizer bert(
      {Normal::bert_clean, Normal::bert_chinese, Normal::nfd, Normal::strip_nonspacing, Normal::lowercase});
  EXPECT_EQ(bert.apply("Zürich\tÉTÉ"), "zurich ete");
  EXPECT_EQ(bert.apply(std::string("a\0b\x01"
                                   "c\uFFFD\u200Dd",
                                   12)),
            "abcd");
  EXPECT_EQ(bert.apply("a中b"), "a 中 b");
  EXPECT_EQ(bert.apply("İ ẞ ΑΒΣ"), "i ß αβσ");
  EXPECT_EQ(bert.apply("x\u00A0\u2028y\r\n"), "x  y  ");
  EXPECT_EQ(Normalizer({Normal::lowercase}).apply("İ"), "i\u0307");
  EXPECT_EQ(Normalizer({Normal::nfd, Normal::strip_combining}).apply("é\u0903"), "e");
  EXPECT_EQ(Normalizer({Normal::nfd, Normal::strip_nonspacing}).apply("é\u0903"), "e\u0903");
  EXPECT_TRUE(Normalizer().empty());
}

TEST(WordPiece, DecodesWithoutSpacesBeforePunctuation) {
  const Tokenizer tokenizer = test::golden_tokenizer("bert");
  const auto round = [&](const char* text) { return tokenizer.decode(tokenizer.encode(text), true); };
  EXPECT_EQ(round("The models, all."), "the models, all.");
  EXPECT_EQ(round("(the)"), "( the )");
  EXPECT_EQ(tokenizer.decode(std::vector<Token>{*tokenizer.find("##s")}), "##s");  // the first keeps its prefix
}

TEST(Unicode, KnowsUtf8) {
  EXPECT_TRUE(is_utf8("aé中😀\uFFFF\U0010FFFF"));
  const std::vector<std::pair<std::string, std::string>> broken = {{"\x80", "?"},
                                                                   {"\xC0\x80", "??"},
                                                                   {"\xC3", "?"},
                                                                   {"\xE4\xBD", "?"},
                                                                   {"\xE4\xBDx", "?x"},
                                                                   {"\xED\xA0\x80", "???"},
                                                                   {"\xF0\x9F\x98", "?"},
                                                                   {"\xF4\x90\x80\x80", "????"},
                                                                   {"\xE0\x80\x80", "???"},
                                                                   {"\xF8\x88\x80\x80", "????"},
                                                                   {"a\xFF"
                                                                    "b",
                                                                    "a?b"},
                                                                   {"\xF0\x9F\xE4\xBD\xA0", "?你"}};
  for (const auto& [bytes, shape] : broken) {
    std::string expected;
    for (const char c : shape) expected += c == '?' ? std::string("\xEF\xBF\xBD") : std::string(1, c);
    EXPECT_FALSE(is_utf8(bytes));
    EXPECT_EQ(utf8_repaired(bytes), expected) << shape;
  }
  EXPECT_EQ(utf8_cut_tail("a\xF0\x9F\x98"), 3U);
  EXPECT_EQ(utf8_cut_tail("a\xE4\xBD"), 2U);
  EXPECT_EQ(utf8_cut_tail("a\xC3"), 1U);
  EXPECT_EQ(utf8_cut_tail("a\xC3\xA9"), 0U);
  EXPECT_EQ(utf8_cut_tail("\xBD\xBD\xBD"), 0U);
  EXPECT_EQ(utf8_cut_tail("\xED\xA0"), 0U);  // half a surrogate begins nothing
  EXPECT_EQ(utf8_cut_tail(""), 0U);
}

TEST(Unicode, NormalForms) {
  EXPECT_EQ(nfc("e\u0301 \u1112\u1161\u11AB q\u0307\u0323 \u212B"), "é 한 q\u0323\u0307 Å");
  EXPECT_EQ(nfd("é한Å"), "e\u0301\u1112\u1161\u11ABA\u030A");
  EXPECT_EQ(nfc("e\u1AC1\u0301"), "e\u1AC1\u0301");  // a mark younger than the tables that tokenizers go by
  std::string marks = "a";
  for (int i = 0; i < 100000; ++i) marks += i % 2 == 0 ? "\u0301" : "\u0323";
  const std::string sorted = nfd(marks);  // a quadratic sort would take minutes
  EXPECT_EQ(sorted.size(), marks.size());
  EXPECT_EQ(sorted.substr(1, 4), "\u0323\u0323");
}

}  // namespace
}  // namespace attend::llm
