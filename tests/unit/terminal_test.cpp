// Pictures drawn with characters.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "attend/error.hpp"
#include "draw/columns.hpp"
#include "draw/terminal.hpp"

namespace attend::draw {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

bool ascii(const std::string& text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80 && c != '\x1b'; });
}

HeatMap causal_map(std::int64_t tokens) {
  HeatMap map{.values = grid_of(tokens, tokens, kMasked)};
  for (std::int64_t i = 0; i < tokens; ++i)
    for (std::int64_t j = 0; j <= i; ++j) map.values.at(i, j) = 1.0 / static_cast<double>(i + 1);
  return map;
}

std::vector<Picture> one_of_each() {
  HeatMap words = causal_map(20);
  words.across.labels = words.down.labels = std::vector<std::string>(20, " word");
  return {
      causal_map(3),
      words,
      causal_map(40),
      causal_map(300),
      TokenLines{.queries = {"a", "b"}, .keys = {"a", "b"}, .heads = {{"h", causal_map(2).values}}},
      HeadSheet{.heads = 4, .kv_heads = 2, .cells = std::vector<HeadSheet::Cell>(8, {causal_map(16).values, "mixed"})},
      HeadSheet{.heads = 40, .cells = std::vector<HeadSheet::Cell>(80, {grid_of(1, 1, 0.5)})},
      Chart{.captions = {"Loss"}, .panels = {{"run", {{"training", {{1, 3}, {100, 2}}}, {"validation", {{50, 2.5}}}}}}},
      Bars{.labels = {" cat", "dog"}, .kinds = {{"before", {0.5, 0.25}}, {"after", {-0.5, NAN}}}}};
}

TEST(Terminal, PlainDrawingsAreAsciiAndNoneIsTooWide) {
  use_utf8();
  for (const Picture& picture : one_of_each())
    for (const int columns : {60, 80, 200}) {
      const std::string text = to_terminal(picture, {.columns = columns});
      EXPECT_TRUE(ascii(text)) << text;
      EXPECT_TRUE(text.ends_with("\n"));
      for (const std::string& line : lines_of(text)) EXPECT_LE(columns_of(line), columns) << line;
    }
}

TEST(Terminal, ColoursAreOfTheKindThatTheScreenHas) {
  use_utf8();
  for (const Picture& picture : one_of_each()) {
    if (std::holds_alternative<TokenLines>(picture)) continue;
    const std::string palette = to_terminal(picture, {.colours = Colours::palette}),
                      full = to_terminal(picture, {.colours = Colours::full});
    EXPECT_EQ(palette.find(";2;"), std::string::npos);
    EXPECT_NE(palette.find(";5;"), std::string::npos);
    EXPECT_NE(full.find(";2;"), std::string::npos);
  }
}

TEST(Terminal, ASmallMatrixShowsItsNumbers) {
  HeatMap map{.values = {2, 2, {1, kMasked, 0.25, -0.75}}, .across = {"x", {"a", "b"}}, .down = {"y", {"c", "d"}}};
  EXPECT_EQ(to_terminal(map, {}),
            "  x\n"
            "      a     b\n"
            "c  1.00\n"
            "d  0.25 -0.75\n"
            "\n"
            "  0 .:-=+*#%@ 1 (square-root scale)\n");
}

TEST(Terminal, MaskedZeroAndEvictedLookDifferent) {
  HeatMap map = causal_map(20);
  map.values.at(19, 3) = kEvicted;
  map.values.at(19, 4) = 0;
  map.across.labels = map.down.labels = std::vector<std::string>(20, "w");
  const std::vector<std::string> lines = lines_of(to_terminal(map, {}));
  EXPECT_EQ(lines[2].substr(0, 4), "w @@");  // the first row: one cell, the rest masked
  EXPECT_EQ(lines[2].size(), 4u);
  EXPECT_EQ(lines[21].substr(2 + 2 * 3, 4), "xx..");
  EXPECT_NE(lines.back().find("evicted"), std::string::npos);
}

TEST(Terminal, WhatDoesNotFitIsPooledAndSaysSo) {
  HeatMap map = causal_map(300);
  map.values.at(299, 0) = 0.9;  // a needle
  const std::string text = to_terminal(map, {});
  EXPECT_NE(text.find("each cell: the largest of 5 x 5"), std::string::npos);
}

TEST(Terminal, AChartHasItsEndsAndNames) {
  const Chart chart{.panels = {{"Loss", {{"training", {{0, 4}, {100, 2}}}}, {.name = "step"}, {.name = "nats"}}}};
  const std::vector<std::string> lines = lines_of(to_terminal(chart, {}));
  EXPECT_EQ(lines[0], "Loss  nats");
  EXPECT_EQ(lines[1].substr(0, 6), "  4 |*");
  EXPECT_EQ(lines[14].back(), '*');
  EXPECT_EQ(lines[14].substr(0, 5), "  2 |");
  EXPECT_NE(lines.back().find("** training"), std::string::npos);
}

TEST(Terminal, BarsAreAsLongAsTheirValues) {
  const Bars bars{.labels = {"a", "b", "c"}, .kinds = {{"", {1, 0.5, 0}}}};
  const std::vector<std::string> lines = lines_of(to_terminal(bars, {}));
  const auto length = [&](std::size_t n) { return std::count(lines[n].begin(), lines[n].end(), '#'); };
  EXPECT_EQ(length(0), 2 * length(1));
  EXPECT_EQ(length(2), 0);
  EXPECT_TRUE(lines[1].ends_with(" 0.5"));
}

TEST(Terminal, ASheetHasBracketsAndWraps) {
  const HeadSheet sheet{.heads = 4, .kv_heads = 2, .cells = std::vector<HeadSheet::Cell>(8, {grid_of(1, 1, 0.5)})};
  const std::string text = to_terminal(sheet, {});
  EXPECT_NE(text.find("KV 0"), std::string::npos);
  EXPECT_NE(text.find("KV 1"), std::string::npos);
  EXPECT_NE(text.find("0     1     2     3"), std::string::npos);
}

TEST(Terminal, ASparklineRisesWithItsValues) {
  EXPECT_EQ(sparkline({0, 1, 2, 3, 4, 5, 6, 7}, 80, {.colours = Colours::full}), "▁▂▃▄▅▆▇█");
  EXPECT_EQ(sparkline({9, 0, 7}, 2, {}), "_#");
  EXPECT_EQ(sparkline({1, NAN, 2}, 80, {}), "_ #");
  EXPECT_EQ(sparkline({}, 80, {}), "");
}

TEST(Terminal, RefusesWhatPicturesRefuse) {
  EXPECT_THROW(to_terminal(HeatMap{}, {}), InvalidArgument);
  EXPECT_THROW(to_terminal(Bars{}, {}), InvalidArgument);
}

}  // namespace
}  // namespace attend::draw
