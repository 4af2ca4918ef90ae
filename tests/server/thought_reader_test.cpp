// Thoughts and the answer after them, however the text is cut.
#include "apps/server/thought_reader.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.hpp"

namespace attend::server {
namespace {

using Begin = ThoughtReader::Begin;

ThoughtReader::Piece read(Begin begin, std::string_view text, std::size_t step) {
  ThoughtReader reader(begin);
  ThoughtReader::Piece all;
  for (std::size_t at = 0; at <= text.size(); at += step) {
    const ThoughtReader::Piece piece = reader.take(text.substr(at, step), at + step > text.size());
    all.thoughts += piece.thoughts;
    all.content += piece.content;
  }
  return all;
}

void expect(Begin begin, std::string_view text, std::string_view thoughts, std::string_view content) {
  for (const std::size_t step : {std::size_t{1}, std::size_t{2}, std::size_t{5}, text.size() + 1}) {
    const ThoughtReader::Piece got = read(begin, text, step);
    EXPECT_EQ(got.thoughts, thoughts) << text << " by " << step;
    EXPECT_EQ(got.content, content) << text << " by " << step;
  }
}

TEST(ThoughtReader, SplitsThoughtsOff) {
  expect(Begin::either, "<think>\nhm\n</think>\n\nYes.\n", "hm", "Yes.\n");
  expect(Begin::either, "\n <think>a\n\nb</think>Yes", "a\n\nb", "Yes");
  expect(Begin::either, "<think>\n\n</think>\n\nYes", "", "Yes");
  expect(Begin::thoughts, "hm\n</think>\n\nYes", "hm", "Yes");
  expect(Begin::thoughts, "\nhm</think>", "hm", "");
  expect(Begin::thoughts, "</think>Yes</think>", "", "Yes</think>");
}

TEST(ThoughtReader, OnlyTheBeginningHasThoughts) {
  expect(Begin::either, "No. <think>hm</think>", "", "No. <think>hm</think>");
  expect(Begin::either, "<tool_call>{}", "", "<tool_call>{}");
  expect(Begin::either, " \n x", "", " \n x");
  expect(Begin::either, "<thinking>", "", "<thinking>");
  expect(Begin::content, "<think>hm</think>Yes", "", "<think>hm</think>Yes");
  expect(Begin::thoughts, "a <think>b</think>c <think>d</think>", "a <think>b", "c <think>d</think>");
}

TEST(ThoughtReader, WhatIsCutIsNotLost) {
  expect(Begin::either, "", "", "");
  expect(Begin::either, "\n ", "", "\n ");
  expect(Begin::either, "<thin", "", "<thin");
  expect(Begin::either, "<think>", "", "");
  expect(Begin::either, "<think>hm</thin", "hm</thin", "");
  expect(Begin::thoughts, "hm\n\n", "hm\n\n", "");
  expect(Begin::thoughts, "a<b</</think", "a<b</</think", "");
  expect(Begin::thoughts, "", "", "");
}

// Text is given out as it comes, so that an answer of any length is read once.
TEST(ThoughtReader, HoldsBackLittle) {
  ThoughtReader reader(Begin::either);
  EXPECT_EQ(reader.take("<think>abc</t", false).thoughts, "abc");
  EXPECT_EQ(reader.take("o", false).thoughts, "</to");
  EXPECT_GT(reader.take(std::string(1000, '\n'), false).thoughts.size(), 900U);
  EXPECT_EQ(reader.take("</think>yes", false).content, "yes");
  EXPECT_EQ(reader.take("<", false).content, "<");
  ThoughtReader spaces(Begin::either);
  EXPECT_EQ(spaces.take(std::string(1000, ' '), false).content.size(), 1000U);
}

// However the text is cut, the parts are the same, and nothing but marks and line ends is lost.
TEST(ThoughtReader, PiecesInAnyOrder) {
  constexpr const char* kParts[] = {"<think>", "</think>", "<", "/think>", "<think", "\n", " ", "a", "bc"};
  for (std::uint64_t n = 0; n < 3000; ++n) {
    std::string text;
    const auto count = static_cast<std::uint64_t>(uniform(n, 0) * 12);
    for (std::uint64_t i = 1; i <= count; ++i)
      text += kParts[static_cast<std::size_t>(uniform(n, i) * static_cast<double>(std::size(kParts)))];
    const Begin begin = n % 3 == 0 ? Begin::content : n % 3 == 1 ? Begin::either : Begin::thoughts;
    const ThoughtReader::Piece whole = read(begin, text, text.size() + 1);
    expect(begin, text, whole.thoughts, whole.content);
    EXPECT_TRUE(text.ends_with(whole.content)) << text;
    EXPECT_NE(text.find(whole.thoughts), std::string::npos) << text;
    EXPECT_LE(text.size() - whole.thoughts.size() - whole.content.size(),
              15 + static_cast<std::size_t>(
                       std::count_if(text.begin(), text.end(), [](char c) { return c == '\n' || c == ' '; })))
        << text;
  }
}

TEST(ThoughtReader, KnowsItsMarks) {
  EXPECT_TRUE(ThoughtReader(Begin::either).is_mark("<think>"));
  EXPECT_TRUE(ThoughtReader(Begin::thoughts).is_mark("</think>"));
  EXPECT_FALSE(ThoughtReader(Begin::either).is_mark("think"));
  EXPECT_FALSE(ThoughtReader(Begin::content).is_mark("<think>"));
}

}  // namespace
}  // namespace attend::server
