// The largest tokenizer files: what reading them takes is bounded by their size.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "tokenizer_files.hpp"
#include "unit/allocated.hpp"

namespace attend::llm {
namespace {

constexpr std::int64_t kTimesFile = 32, kMost = std::int64_t{512} << 20;  // as SECURITY.md says

std::string with(const std::string& vocabulary, const std::string& merges) {
  return R"({"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},"decoder":{"type":"ByteLevel"},
             "model":{"type":"BPE","vocab":{)" +
         vocabulary + "},\"merges\":[" + merges + "]}}";
}

std::int64_t peak_of_reading(const std::string& text) {
  return attend::test::peak_of([&] { tokenizer_from_json(io::parse_json(text, "t.json"), "t.json"); });
}

void expect_within(const std::string& text) {
  const std::int64_t peak = peak_of_reading(text);
  EXPECT_LE(peak, kTimesFile * static_cast<std::int64_t>(text.size()));
  EXPECT_LE(peak, kMost);
}

// Nine characters each, so that 524,288 tokens are 10 MB.
std::string many_tokens(int count) {
  std::string vocabulary;
  for (int id = 0; id < count; ++id)
    vocabulary += (id == 0 ? "\"" : ",\"") + std::to_string(100'000'000 + id) + "\":" + std::to_string(id);
  return vocabulary;
}

std::string many_merges(const std::string& merge) {
  std::string merges = merge;
  for (int n = 1; n < 1 << 20; ++n) merges += "," + merge;
  return merges;
}

TEST(TokenizerMemory, OfTheLargestVocabulary) {
  expect_within(with(many_tokens(1 << 19), ""));
}

TEST(TokenizerMemory, OfTheLongestListsOfMerges) {
  const std::string vocabulary = R"("a":0,"b":1,"ab":2)";
  expect_within(with(vocabulary, many_merges(R"(["a","b"])")));
  expect_within(with(vocabulary, many_merges(R"("a b")")));
  expect_within(
      with(many_tokens((1 << 19) - 3) + R"(,"a":524285,"b":524286,"ab":524287)", many_merges(R"(["a","b"])")));
}

TEST(TokenizerMemory, OfJsonWithTheMostValues) {
  std::string numbers = "[0";
  for (int n = 2; n < 1 << 22; ++n) numbers += ",0";
  numbers += "]";
  const std::int64_t peak = attend::test::peak_of([&] { io::parse_json(numbers, "it"); });
  EXPECT_LE(peak, kTimesFile * static_cast<std::int64_t>(numbers.size()));
}

}  // namespace
}  // namespace attend::llm
