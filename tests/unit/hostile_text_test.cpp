// Small files that ask for much memory or time: each is refused, or costs no more than its size.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "io/gguf.hpp"
#include "llm/text/chat_template.hpp"
#include "tokenizer_files.hpp"

namespace attend::llm {
namespace {

std::string repeated(std::size_t count, const std::string& text, const std::string& separator = ",") {
  std::string all;
  for (std::size_t n = 0; n < count; ++n) all += (n == 0 ? "" : separator) + text;
  return all;
}

std::string added_token(std::int64_t id, const std::string& content) {
  return R"({"id": )" + std::to_string(id) + R"(, "content": ")" + content +
         R"(", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true})";
}

std::string tokenizer(const std::string& post_processor, const std::string& added) {
  return R"({"added_tokens": [)" + added + R"(], "normalizer": null,
"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}, "post_processor": )" +
         post_processor + R"(, "decoder": {"type": "ByteLevel"},
"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})";
}

// "" when nothing is thrown.
template <class F>
std::string file_error(const F& call) {
  try {
    call();
  } catch (const io::FileError& error) {
    return error.what();
  }
  return "";
}

std::string refusal(const std::string& text) {
  return file_error([&] { tokenizer_from_json(text, "t.json"); });
}

std::string template_of(const std::string& before_text, const std::string& special_tokens) {
  return R"({"type": "TemplateProcessing", "single": [)" + before_text +
         R"({"Sequence": {"id": "A"}}], "special_tokens": {)" + special_tokens + "}}";
}

constexpr const char* kPiece = R"({"SpecialToken": {"id": "x"}})";

TEST(HostileTokenizer, TokensAroundATextAreFew) {
  const std::string x = R"("x": {"ids": [0]})";
  const auto with = [&](std::size_t pieces) {
    return tokenizer(template_of(repeated(pieces, kPiece) + (pieces > 0 ? "," : ""), x), "");
  };
  EXPECT_EQ(refusal(with(0)), "");
  EXPECT_EQ(refusal(with(64)), "");
  EXPECT_NE(refusal(with(65)).find("single: it puts more than 64 tokens around a text"), std::string::npos);
}

// 20,000 pieces of 40,000 ids each: 641 KB that took 1.6 GB.
TEST(HostileTokenizer, APostProcessorCannotMultiply) {
  const std::string many = R"("x": {"ids": [)" + repeated(40'000, "0") + "]}";
  EXPECT_NE(refusal(tokenizer(template_of(repeated(20'000, kPiece) + ",", many), "")).find("more than 64 tokens"),
            std::string::npos);
  EXPECT_NE(refusal(tokenizer(template_of(std::string(kPiece) + ",", many), "")).find("ids: it puts more than 64"),
            std::string::npos);
  // Nor can several, one around the other.
  const std::string two = template_of(repeated(40, kPiece) + ",", R"("x": {"ids": [0]})");
  EXPECT_NE(refusal(tokenizer(R"({"type": "Sequence", "processors": [)" + two + "," + two + "]}", ""))
                .find("processors[1]: it puts more than 64"),
            std::string::npos);
}

// Each piece looks for its special token among all of them, from the first on.
TEST(HostileTokenizer, SpecialTokensAreNotLookedUpWithoutEnd) {
  std::string special, pieces;
  for (int n = 0; n < 100'000; ++n) {
    special += (n == 0 ? "\"" : ",\"") + std::to_string(n) + R"(": {"ids": []})";
    pieces += R"({"SpecialToken": {"id": "99999"}},)";
  }
  EXPECT_NE(refusal(tokenizer(template_of(pieces, special), "")).find("single: it puts more than 64"),
            std::string::npos);
}

TEST(HostileTokenizer, AddedTokensAreBoundedTogether) {
  const auto with = [](int count) {
    std::string added;
    for (int n = 0; n < count; ++n) {
      std::string content = std::to_string(n);
      content.resize(4096, 'x');
      if (n > 0) added += ",";
      added += added_token(3 + n, content);
    }
    return tokenizer("null", added);
  };
  EXPECT_EQ(refusal(with(64)), "");
  EXPECT_NE(refusal(with(65)).find("brings the added tokens to more than 262144 bytes"), std::string::npos);
}

// Twice the tokens and 65,536: three of them here.
TEST(HostileTokenizer, IdsLeaveFewHoles) {
  const auto with = [](int id) {
    std::string text = tokenizer("null", "");
    const std::string last = "\"ab\": 2";
    return text.replace(text.find(last), last.size(), "\"ab\": " + std::to_string(id));
  };
  EXPECT_EQ(refusal(with(65'541)), "");
  EXPECT_NE(refusal(with(65'542)).find("has id 65542, expected 0 to 65541"), std::string::npos)
      << refusal(with(65'542));
}

TEST(HostileTokenizer, TokensAndMergesAreBounded) {
  const std::string good = tokenizer("null", "");
  std::string text = good;
  text.replace(text.find("\"ab\": 2"), 7, "\"ab\": 2, \"" + std::string(65'536, 'a') + "\": 3");
  EXPECT_EQ(refusal(text), "");
  text.replace(text.find("aaaa"), 1, "aa");
  EXPECT_NE(refusal(text).find("has 65537 bytes, expected at most 65536"), std::string::npos) << refusal(text);
  text = good;
  text.replace(text.find("\"a b\""), 5, repeated((std::size_t{1} << 20) + 1, "\"a b\""));
  EXPECT_NE(refusal(text).find("merges: 1048577 merges, expected at most 1048576"), std::string::npos) << refusal(text);
}

TEST(HostileTokenizer, JsonHoldsSoManyValues) {
  const std::string numbers = "[" + repeated(5'000'000, "0") + "]";  // 10 MB of text, 200 MB of values
  EXPECT_NE(file_error([&] { io::parse_json(numbers, "it"); }).find("it holds more than 4194304 values"),
            std::string::npos);
  EXPECT_NE(file_error([&] { io::parse_json("[[],[],[]]", "it", {.values = 3}); }).find("more than 3 values"),
            std::string::npos);
  EXPECT_EQ(file_error([&] { io::parse_json("[[],[]]", "it", {.values = 3}); }), "");
}

TEST(HostileTokenizer, GgufHoldsSoManySettingsAndTokens) {
  test::GgufFile settings;
  for (int n = 0; n < 32'769; ++n) settings.boolean(std::to_string(n), true);
  const std::string bytes = settings.bytes();
  EXPECT_NE(file_error([&] {
              io::parse_gguf(std::as_bytes(std::span(bytes)), "m.gguf");
            }).find("32769 settings, expected at most 32768"),
            std::string::npos);
  test::GgufFile tokens;
  tokens.text("tokenizer.ggml.model", "gpt2");
  tokens.texts("tokenizer.ggml.tokens", std::vector<std::string>((std::size_t{1} << 19) + 1));
  EXPECT_NE(file_error([&] {
              test::gguf_tokenizer(tokens);
            }).find("tokenizer.ggml.tokens: has 524289 strings, expected at most 524288"),
            std::string::npos);
}

// 4 MB in which every beginning of a system message is followed by the same far end.
TEST(HostileTokenizer, ATemplateIsReadOnce) {
  std::string source = repeated(200'000, "<|im_start|>system\n", "") + "'<|im_end|>";
  EXPECT_EQ(ChatTemplate::detect(source).name(), "chatml");
  source = repeated(200'000, "<|im_start|>system\n'", "") + "<|im_end|>";
  EXPECT_EQ(ChatTemplate::detect(source).name(), "chatml");
  source = "<|im_start|>system\n' + x + '<|im_end|><|im_start|>system\nBe brief.<|im_end|>";
  const std::vector<Message> hello = {{"user", "hi"}};
  EXPECT_NE(ChatTemplate::detect(source).render(hello, true).find("system\nBe brief.<|im_end|>"), std::string::npos);
}

}  // namespace
}  // namespace attend::llm
