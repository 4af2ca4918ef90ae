// The largest tokenizer files: reading one takes at most 64 MiB in addition to the file.
#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tokenizer_files.hpp"
#include "unit/allocated.hpp"

namespace attend::llm {
namespace {

constexpr std::int64_t kMost = std::int64_t{64} << 20;  // as SECURITY.md says

std::string with(const std::string& vocabulary, const std::string& merges, const std::string& more = "") {
  return R"({"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},"decoder":{"type":"ByteLevel"},)" + more +
         R"("model":{"type":"BPE","vocab":{)" + vocabulary + "},\"merges\":[" + merges + "]}}";
}

// The error, or "".
template <class F>
std::string expect_within(const F& read) {
  std::string error;
  const std::int64_t peak = attend::test::peak_of([&] {
    try {
      read();
    } catch (const io::FileError& e) {
      error = e.what();
    }
  });
  EXPECT_LE(peak, kMost) << error;
  return error;
}
std::string expect_json_within(const std::string& text) {
  return expect_within([&] { tokenizer_from_json(text, "t.json"); });
}

std::string repeated(std::size_t count, const std::string& part) {
  std::string text = part;
  for (std::size_t n = 1; n < count; ++n) text += "," + part;
  return text;
}

// Nine characters each, so that 524,288 tokens are 10 MB.
std::string many_tokens(int count) {
  std::string vocabulary;
  for (int id = 0; id < count; ++id)
    vocabulary += (id == 0 ? "\"" : ",\"") + std::to_string(100'000'000 + id) + "\":" + std::to_string(id);
  return vocabulary;
}

// All words of up to four letters, each made in two ways: 475,254 tokens, 950,456 merges.
struct LargeBpe {
  std::vector<std::string> tokens, left, right;

  LargeBpe() {
    for (char c = 'a'; c <= 'z'; ++c) tokens.emplace_back(1, c);
    for (std::size_t begin = 0, end = tokens.size(); tokens.back().size() < 4; begin = end, end = tokens.size())
      for (std::size_t i = begin; i < end; ++i)
        for (char c = 'a'; c <= 'z'; ++c) tokens.push_back(tokens[i] + c);
    for (std::size_t i = 26; i < tokens.size(); ++i)
      for (const std::size_t cut : {tokens[i].size() - 1, std::size_t{1}}) {
        left.push_back(tokens[i].substr(0, cut));
        right.push_back(tokens[i].substr(cut));
      }
  }
  std::string json(bool pairs) const {
    std::string vocabulary, merges;
    for (std::size_t i = 0; i < tokens.size(); ++i)
      vocabulary += (i == 0 ? "\"" : ",\"") + tokens[i] + "\":" + std::to_string(i);
    for (std::size_t i = 0; i < left.size(); ++i)
      merges += (i == 0 ? "" : ",") + ((pairs ? "[\"" : "\"") + left[i]) + (pairs ? "\",\"" : " ") + right[i] +
                (pairs ? "\"]" : "\"");
    return with(vocabulary, merges);
  }
};

TEST(TokenizerMemory, OfLargeTokenizers) {
  const LargeBpe large;
  for (const bool pairs : {false, true}) EXPECT_EQ(expect_json_within(large.json(pairs)), "");
  test::GgufFile file;
  file.text("tokenizer.ggml.model", "gpt2");
  file.texts("tokenizer.ggml.tokens", large.tokens);
  std::vector<std::string> merges;
  for (std::size_t i = 0; i < large.left.size(); ++i) merges.push_back(large.left[i] + " " + large.right[i]);
  file.texts("tokenizer.ggml.merges", merges);
  const std::string bytes = file.bytes();
  const io::Gguf gguf = io::parse_gguf(std::as_bytes(std::span(bytes)), "m.gguf");
  EXPECT_EQ(expect_within([&] { tokenizer_from_gguf(gguf, "m.gguf"); }), "");
}

TEST(TokenizerMemory, OfTheLargestVocabulary) {
  EXPECT_EQ(expect_json_within(with(many_tokens(1 << 19), "")), "");
}

TEST(TokenizerMemory, OfTheLongestListsOfMerges) {
  const std::string vocabulary = R"("a":0,"b":1,"ab":2)";
  EXPECT_EQ(expect_json_within(with(vocabulary, repeated(1 << 20, R"(["a","b"])"))), "");
  EXPECT_EQ(expect_json_within(with(vocabulary, repeated(1 << 20, R"("a b")"))), "");
  EXPECT_EQ(expect_json_within(with(many_tokens((1 << 19) - 3) + R"(,"a":524285,"b":524286,"ab":524287)",
                                    repeated(1 << 20, R"(["a","b"])"))),
            "");
}

// 7 MB, no piece of which begins like another: in a trie each of the bytes would be a node.
TEST(TokenizerMemory, OfTheLargestWordPieces) {
  std::string vocabulary = "\"[UNK]\":0";
  for (int id = 1; id < 1 << 17; ++id) {
    const std::string number = std::to_string(id);
    vocabulary += ",\"##" + std::string(number.rbegin(), number.rend()) + std::string(48, 'x') + "\":" + number;
  }
  EXPECT_EQ(expect_json_within(R"({"pre_tokenizer": {"type": "BertPreTokenizer"},
      "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
      "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100, "vocab": {)" +
                               vocabulary + "}}}"),
            "");
}

TEST(TokenizerMemory, OfWhatIsNotNeeded) {
  const std::string vocabulary = R"("a":0,"b":1,"ab":2)";
  const auto with_more = [&](const std::string& more) {
    return with(vocabulary, R"("a b")", "\"more\":" + more + ",");
  };
  EXPECT_EQ(expect_json_within(with_more("[" + repeated(4'000'000, "0") + "]")), "");
  EXPECT_EQ(expect_json_within(with_more("[" + repeated(1'000'000, "{\"a\":[1]}") + "]")), "");
  EXPECT_EQ(expect_json_within(with_more("{" + many_tokens(2'000'000) + "}")), "");
  EXPECT_EQ(expect_json_within(with_more("\"" + std::string(60 << 20, 'x') + "\"")), "");
  EXPECT_EQ(expect_json_within(with_more("1" + std::string(30 << 20, '0'))), "");
}

TEST(TokenizerMemory, OfBadFiles) {
  const std::string vocabulary = R"("a":0,"b":1,"ab":2)";
  const auto part = [&](const std::string& name, const std::string& value) {
    return with(vocabulary, R"("a b")", "\"" + name + "\":" + value + ",");
  };
  const std::string token = R"({"id": 3, "content": "c", "single_word": false, "lstrip": false, "rstrip": false,
                                "normalized": false, "special": true})";
  EXPECT_NE(expect_json_within(part("added_tokens", "[" + repeated(300'000, token) + "]")), "");
  EXPECT_NE(expect_json_within(part("normalizer", "[" + repeated(4'000'000, "0") + "]")), "");
  EXPECT_NE(expect_json_within(part("post_processor", "{" + many_tokens(2'000'000) + "}")), "");
  EXPECT_NE(expect_json_within("{\"" + std::string(60 << 20, 'x')), "");
  EXPECT_NE(expect_json_within("{\"a\": \"" + std::string(60 << 20, 'x') + "\", }"), "");
  EXPECT_NE(expect_json_within("{\"" + std::string(30 << 20, 'x') + "\":0,\"" + std::string(30 << 20, 'x') + "\":0}"),
            "");
  EXPECT_NE(expect_json_within(std::string(60 << 20, '[')), "");
}

// parse_json builds a tree, for files that are smaller.
TEST(TokenizerMemory, OfJsonWithTheMostValues) {
  std::string numbers = "[0";
  for (int n = 2; n < 1 << 22; ++n) numbers += ",0";
  numbers += "]";
  const std::int64_t peak = attend::test::peak_of([&] { io::parse_json(numbers, "it"); });
  EXPECT_LE(peak, 32 * static_cast<std::int64_t>(numbers.size()));
}

}  // namespace
}  // namespace attend::llm
