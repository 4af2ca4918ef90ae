// Byte-level BPE and its patterns: against the slow definition, for short words and long ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "llm/text/bpe.hpp"
#include "llm/text/pre_tokenizer.hpp"

namespace attend::llm {
namespace {

using Tokens = std::vector<std::int32_t>;

// Over the letters a to d: all pairs of what is there so far, drawn at random.
struct RandomBpe {
  explicit RandomBpe(unsigned seed, bool with_d = true) {
    std::mt19937 random(seed);
    parts.byte_tokens.fill(-1);
    for (const char c : std::string(with_d ? "abcd" : "abc")) {
      parts.byte_tokens[static_cast<unsigned char>(c)] = static_cast<std::int32_t>(pieces.size());
      pieces.emplace_back(1, c);
    }
    while (merges.size() < 60) {
      const auto left = static_cast<std::int32_t>(random() % pieces.size());
      const auto right = static_cast<std::int32_t>(random() % pieces.size());
      const std::string joined = pieces[static_cast<std::size_t>(left)] + pieces[static_cast<std::size_t>(right)];
      auto known = std::find(pieces.begin(), pieces.end(), joined);
      if (known == pieces.end()) known = pieces.insert(pieces.end(), joined);  // two merges may make one token
      merges.push_back({left, right, static_cast<std::int32_t>(known - pieces.begin())});
    }
    parts.merges = MergeTable(merges.size());
    for (const Merge& m : merges) parts.merges.add(m.left, m.right, m.result);
    for (std::size_t i = 0; i < pieces.size(); ++i) parts.words.push_back(static_cast<std::int32_t>(i));
  }

  // The definition: the pair of the lowest rank, of those the leftmost, until there is none.
  Tokens slow(const std::string& word) const {
    std::map<std::pair<std::int32_t, std::int32_t>, std::pair<std::size_t, std::int32_t>> ranks;
    for (std::size_t i = 0; i < merges.size(); ++i) ranks[{merges[i].left, merges[i].right}] = {i, merges[i].result};
    Tokens tokens;
    for (const char c : word) {
      const std::int32_t token = parts.byte_tokens[static_cast<unsigned char>(c)];
      if (token >= 0) tokens.push_back(token);
    }
    for (;;) {
      std::size_t best = merges.size(), at = 0;
      for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
        const auto found = ranks.find({tokens[i], tokens[i + 1]});
        if (found != ranks.end() && found->second.first < best) best = found->second.first, at = i;
      }
      if (best == merges.size()) return tokens;
      tokens[at] = ranks[{tokens[at], tokens[at + 1]}].second;
      tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    }
  }

  struct Merge {
    std::int32_t left, right, result;
  };
  std::vector<std::string> pieces;
  std::vector<Merge> merges;
  BpeParts parts;
};

Tokens encode(const Bpe& bpe, const std::string& word) {
  Tokens tokens;
  bpe.encode(word, tokens);
  return tokens;
}
Tokens encode(const RandomBpe& made, const std::string& word) {
  const Pieces pieces(made.pieces);
  return encode(Bpe(pieces, made.parts), word);
}

TEST(Bpe, MergesAsDefinedWhateverTheLength) {
  for (unsigned seed = 0; seed < 30; ++seed) {
    const RandomBpe random_bpe(seed);
    const Pieces pieces(random_bpe.pieces);
    const Bpe bpe(pieces, random_bpe.parts);
    std::mt19937 random(seed);
    for (const unsigned size : {0U, 1U, 2U, 3U, 5U, 8U, 20U, 39U, 40U, 41U, 42U, 80U, 300U}) {
      for (int round = 0; round < 5; ++round) {
        std::string word(size, 'a');
        for (char& c : word) c = static_cast<char>('a' + random() % (round == 0 ? 1 : 4));
        EXPECT_EQ(encode(bpe, word), random_bpe.slow(word)) << word;
      }
    }
  }
}

TEST(Bpe, TakesAMillionBytesInOneWord) {
  const RandomBpe random_bpe(3);
  const Pieces pieces(random_bpe.pieces);
  const Bpe bpe(pieces, random_bpe.parts);
  std::string word(1'000'000, 'a');
  std::mt19937 random(1);
  for (char& c : word) c = static_cast<char>('a' + random() % 4);
  const Tokens tokens = encode(bpe, word);  // quadratic merging would take hours
  std::string joined;
  for (const std::int32_t token : tokens) joined += random_bpe.pieces[static_cast<std::size_t>(token)];
  EXPECT_EQ(joined, word);
}

TEST(Bpe, TreatsMissingBytes) {
  RandomBpe made(4, false);
  const auto unknown = static_cast<std::int32_t>(made.pieces.size());
  made.pieces.emplace_back("<unk>");
  EXPECT_EQ(encode(made, "addb"), made.slow("ab"));
  made.parts.unknown = unknown;
  EXPECT_EQ(encode(made, "ddd"), (Tokens{unknown, unknown, unknown}));
  made.parts.fuse_unknown = true;
  EXPECT_EQ(encode(made, "ddd"), (Tokens{unknown}));
  EXPECT_EQ(encode(made, "ddadd").front(), unknown);
  EXPECT_EQ(encode(made, "ddadd").size(), 3U);
}

TEST(Bpe, TakesWholeWordsWhereMergesAreIgnored) {
  RandomBpe made(5);
  made.pieces.emplace_back("dcba");
  const auto whole = static_cast<std::int32_t>(made.pieces.size() - 1);
  made.parts.words.push_back(whole);
  EXPECT_EQ(encode(made, "dcba"), made.slow("dcba"));  // no merge makes it
  made.parts.ignore_merges = true;
  EXPECT_EQ(encode(made, "dcba"), (Tokens{whole}));
}

TEST(Bpe, ReadsTheCharactersThatStandForBytes) {
  std::string bytes;
  EXPECT_TRUE(bytes_of_byte_level("ĠaĊÿ", bytes));
  EXPECT_EQ(bytes, " a\n\xFF");
  EXPECT_TRUE(bytes_of_byte_level("", bytes));
  EXPECT_EQ(bytes, "");
  EXPECT_FALSE(bytes_of_byte_level("a b", bytes));
  EXPECT_FALSE(bytes_of_byte_level("你", bytes));
  EXPECT_FALSE(bytes_of_byte_level("\u00AD", bytes));
}

// --- patterns ---

using Words = std::vector<std::string>;

Words split(std::vector<Split> steps, const std::string& text) {
  PreTokenizer::Words views;
  std::deque<std::string> made;
  PreTokenizer(std::move(steps)).split(text, views, made);
  return Words(views.begin(), views.end());
}

TEST(PreTokenizer, Gpt2) {
  EXPECT_EQ(split({Split::gpt2}, "I'll say 'S it's  two   x\n\ny 12.5!? end  "),
            (Words{"I",  "'ll", " say", " '", "S",   " it", "'s", " ",  " two", "  ",
                   " x", "\n",  "\n",   "y",  " 12", ".",   "5",  "!?", " end", "  "}));
  EXPECT_EQ(split({Split::gpt2}, ""), Words{});
  EXPECT_EQ(split({Split::gpt2}, "\t\tx \u00A0y"), (Words{"\t", "\t", "x", " ", "\u00A0", "y"}));
  EXPECT_EQ(split({Split::gpt2}, "é\u0301中文，字"), (Words{"é", "\u0301", "中文", "，", "字"}));
}

TEST(PreTokenizer, Llama3AndQwen2) {
  EXPECT_EQ(split({Split::llama3}, "It'S 12345 (x)\r\n\n  y\t z...\n\n"),
            (Words{"It", "'S", " ", "123", "45", " (", "x", ")\r\n\n", " ", " y", "\t", " z", "...\n\n"}));
  EXPECT_EQ(split({Split::qwen2}, " 123 \n \n x"), (Words{" ", "1", "2", "3", " \n \n", " x"}));
  EXPECT_EQ(split({Split::llama3}, "x'ſ'LL'Re'v"), (Words{"x", "'ſ", "'LL", "'Re", "'v"}));
  EXPECT_EQ(split({Split::llama3}, "IT'Sx we'LLy 'd"), (Words{"IT", "'S", "x", " we", "'LL", "y", " '", "d"}));
  EXPECT_EQ(split({Split::llama3}, "a \n  x\n\n y \n"), (Words{"a", " \n", " ", " x", "\n\n", " y", " \n"}));
  EXPECT_EQ(split({Split::llama3}, "\n\n"), (Words{"\n\n"}));
  EXPECT_EQ(split({Split::llama3}, "a  "), (Words{"a", "  "}));
  EXPECT_EQ(split({Split::qwen2}, "नमस्ते"), (Words{"नमस", "्त", "े"}));
  EXPECT_EQ(split({Split::qwen35}, "नमस्ते -\u0301x \u0301 1"), (Words{"नमस्ते", " -", "\u0301x", " \u0301", " ", "1"}));
}

TEST(PreTokenizer, Tekken) {
  EXPECT_EQ(split({Split::tekken}, "XMLHttpRequest camelCase ABC"),
            (Words{"XMLHttp", "Request", " camel", "Case", " ABC"}));
  EXPECT_EQ(split({Split::tekken}, "a/b//\n 12"), (Words{"a", "/b", "//\n", " ", "1", "2"}));
  EXPECT_EQ(split({Split::tekken}, "你好World ABCd E"), (Words{"你好World", " ABCd", " E"}));
  EXPECT_EQ(split({Split::tekken}, "你B Ab"), (Words{"你", "B", " Ab"}));
  EXPECT_EQ(split({Split::tekken}, "\u0301Ab-\u0301"), (Words{"\u0301Ab", "-\u0301"}));
}

TEST(PreTokenizer, StepsFollowOneAnother) {
  EXPECT_EQ(split({Split::digits_individual, Split::gpt2}, "a  12 b"), (Words{"a", "  ", "1", "2", " b"}));
  EXPECT_EQ(split({Split::digits, Split::gpt2}, "a  12 b"), (Words{"a", "  ", "12", " b"}));
  EXPECT_EQ(split({Split::prefix_space, Split::gpt2}, "a b"), (Words{" a", " b"}));
  EXPECT_EQ(split({Split::prefix_space, Split::gpt2}, " a"), (Words{" a"}));
  EXPECT_EQ(split({Split::bert}, " it's 3.5,\u3000中$x "), (Words{"it", "'", "s", "3", ".", "5", ",", "中", "$", "x"}));
}

TEST(PreTokenizer, KnowsItsPatterns) {
  for (const std::string& regex : known_patterns()) EXPECT_TRUE(split_of_pattern(regex));
  EXPECT_EQ(split_of_pattern("\\s+"), std::nullopt);
  EXPECT_EQ(split_of_pattern(""), std::nullopt);
}

}  // namespace
}  // namespace attend::llm
