// WordPiece, its normalizer and its decoder.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
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

WordPiece model_of(const std::vector<std::string>& vocabulary, std::int64_t longest_word) {
  Tokens tokens(vocabulary.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  return WordPiece(Pieces(vocabulary), tokens, "##", 0, longest_word);
}

TEST(WordPiece, TakesTheLongestPiece) {
  const std::vector<std::string> vocabulary = {"[UNK]", "un",    "unaff", "##aff", "##able",
                                               "##a",   "##ble", "你",    "##好",  "##"};
  const WordPiece model = model_of(vocabulary, 10);
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

// The definition: of all pieces that the rest of the word begins with the longest.
Tokens slow(const std::vector<std::string>& vocabulary, const std::string& word) {
  Tokens tokens;
  for (std::size_t at = 0; at < word.size();) {
    const std::string prefix = at == 0 ? "" : "##";
    std::size_t bytes = 0, best = 0;
    for (std::size_t i = 0; i < vocabulary.size(); ++i) {
      if (!vocabulary[i].starts_with(prefix)) continue;
      const std::string piece = vocabulary[i].substr(prefix.size());
      if (piece.size() > bytes && word.substr(at).starts_with(piece)) bytes = piece.size(), best = i;
    }
    if (bytes == 0) return {0};
    tokens.push_back(static_cast<std::int32_t>(best));
    at += bytes;
  }
  return tokens;
}

// Many pieces that begin alike, of bytes on both sides of 128: the search passes over longer ones that do not match.
TEST(WordPiece, TakesWhatItsDefinitionTakes) {
  std::mt19937 random(7);
  const auto text = [&](std::size_t longest) {
    std::string made;
    for (std::size_t size = 1 + random() % longest; made.size() < size;) made += "ab\xC3#"[random() % 4];
    return made;
  };
  for (int round = 0; round < 20; ++round) {
    std::set<std::string> pieces;
    for (int n = 0; n < 60; ++n) pieces.insert((random() % 2 == 0 ? "##" : "") + text(7));
    std::vector<std::string> vocabulary = {"[UNK]", ""};
    vocabulary.insert(vocabulary.end(), pieces.begin(), pieces.end());
    std::shuffle(vocabulary.begin() + 1, vocabulary.end(), random);
    const WordPiece model = model_of(vocabulary, 1000);
    for (int n = 0; n < 200; ++n) {
      const std::string word = text(20);
      EXPECT_EQ(encode(model, word), slow(vocabulary, word)) << testing::PrintToString(word);
    }
  }
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
