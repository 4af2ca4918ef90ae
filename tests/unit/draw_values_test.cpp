// Numbers of pictures: colours at the ends and in the middle, limits, ties, and last elements, against values written
// here.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "attend/error.hpp"
#include "draw/characters.hpp"
#include "draw/columns.hpp"
#include "draw/drawing.hpp"
#include "draw/labels.hpp"
#include "draw/wrapped_text.hpp"
#include "support/png_pixels.hpp"

namespace attend::draw {
namespace {

constexpr Rgb kBlue = {0, 68, 124}, kOrange = {140, 52, 0}, kWhite = {255, 255, 255};
constexpr Rgb kDarkBlue = {140, 208, 255}, kDarkOrange = {255, 196, 128}, kDarkPaper = {16, 20, 27};

TEST(Colours, PalettesBeginAndEndWhereTheyAreDefined) {
  EXPECT_EQ(colour_at(0, Palette::viridis), (Rgb{68, 1, 84}));
  EXPECT_EQ(colour_at(1, Palette::viridis), (Rgb{253, 231, 37}));
  EXPECT_EQ(colour_at(0, Palette::cividis), (Rgb{0, 34, 78}));
  EXPECT_EQ(colour_at(1, Palette::cividis), (Rgb{254, 232, 56}));
  EXPECT_EQ(colour_at(0.5, Palette::viridis), (Rgb{33, 145, 140}));
  EXPECT_EQ(colour_at(0.05, Palette::viridis), (Rgb{70, 19, 101}));  // half way between two stops, rounded
  for (const Palette palette : {Palette::viridis, Palette::cividis, Palette::difference}) {
    EXPECT_EQ(colour_at(-3, palette), colour_at(0, palette));
    EXPECT_EQ(colour_at(3, palette), colour_at(1, palette));
  }
}

// Less is blue, more is orange, in both themes; no change has the colour of the paper.
TEST(Colours, DifferencesAreBlueBelowZeroAndOrangeAbove) {
  const ColourScale scale{.palette = Palette::difference, .high = 0.5};
  const Ink &light = ink_of(Theme::light), &dark = ink_of(Theme::dark);
  EXPECT_EQ(cell_colour(-0.5, scale, light), kBlue);
  EXPECT_EQ(cell_colour(0, scale, light), kWhite);
  EXPECT_EQ(cell_colour(0.5, scale, light), kOrange);
  EXPECT_EQ(cell_colour(-0.5, scale, dark), kDarkBlue);
  EXPECT_EQ(cell_colour(0, scale, dark), kDarkPaper);
  EXPECT_EQ(cell_colour(0.5, scale, dark), kDarkOrange);
  EXPECT_EQ(cell_colour(-9, scale, light), kBlue);
  EXPECT_EQ(cell_colour(9, scale, light), kOrange);
  for (const Ink* ink : {&light, &dark})
    for (double size = 0.01; size <= 0.5; size += 0.01) {
      const Rgb less = cell_colour(-size, scale, *ink), more = cell_colour(size, scale, *ink);
      EXPECT_GT(less[2], less[0]) << size;
      EXPECT_GT(more[0], more[2]) << size;
    }
}

TEST(Colours, CellsOfADifferenceHaveTheColoursOfTheirSigns) {
  const HeatMap map{
      .values = {1, 3, {-1, 0, 1}}, .colours = {.palette = Palette::difference, .high = 1}, .numbers = false};
  const testing::Pixels pixels = testing::pixels_of(to_png(map));
  // The first pixel of each colour, from the left: the cells are large, the legend is below.
  const auto first = [&](const Rgb& colour) {
    for (std::int64_t y = 0; y < pixels.height; ++y)
      for (std::int64_t x = 0; x < pixels.width; ++x)
        if (pixels.at(x, y) == colour) return x;
    return pixels.width;
  };
  EXPECT_LT(first(kBlue), first(kOrange));
  EXPECT_LT(first(kOrange), pixels.width);
}

TEST(Colours, EvenPalettesGrowBrighter) {
  const auto brightness = [](const Rgb& c) { return 0.299 * c[0] + 0.587 * c[1] + 0.114 * c[2]; };
  for (const Palette palette : {Palette::viridis, Palette::cividis})
    for (int n = 0; n < 20; ++n)
      EXPECT_LT(brightness(colour_at(n / 20.0, palette)), brightness(colour_at((n + 1) / 20.0, palette))) << n;
}

TEST(Colours, EachScalingHasItsPlaces) {
  const auto place = [](double value, Scaling scaling, Palette palette = Palette::viridis) {
    return place_of(value, {.palette = palette, .scaling = scaling, .high = 0.8});
  };
  EXPECT_DOUBLE_EQ(place(0.2, Scaling::linear), 0.25);
  EXPECT_DOUBLE_EQ(place(0.2, Scaling::square_root), 0.5);
  EXPECT_DOUBLE_EQ(place(0.008, Scaling::logarithmic), 0.5);  // the middle of four powers of ten
  EXPECT_NEAR(place(0.8e-4, Scaling::logarithmic), 0, 1e-12);
  EXPECT_EQ(place(0.7e-4, Scaling::logarithmic), 0);
  EXPECT_EQ(place(-1, Scaling::linear), 0);
  EXPECT_EQ(place(1, Scaling::linear), 1);
  EXPECT_DOUBLE_EQ(place(0.2, Scaling::linear, Palette::difference), 0.625);
  EXPECT_DOUBLE_EQ(place(-0.2, Scaling::linear, Palette::difference), 0.375);
  EXPECT_DOUBLE_EQ(place(-0.2, Scaling::square_root, Palette::difference), 0.25);
}

TEST(Colours, TheHighestCountsSizesOfAllGridsAndLeavesOneIn200) {
  const Grid less{1, 2, {-0.72, 0.1}}, more{1, 1, {0.3}};
  EXPECT_DOUBLE_EQ(highest_of(less), 0.7);
  EXPECT_DOUBLE_EQ(highest_of(std::vector<const Grid*>{&more, &less}), 0.7);
  EXPECT_EQ(highest_of(std::vector<const Grid*>{}), 1);
  EXPECT_EQ(highest_of(Grid{1, 1, {INFINITY}}), 1);
  Grid many = grid_of(1, 201, 0.1);  // place 199 of 0 to 200: one cell may exceed it
  many.at(0, 7) = 0.9;
  EXPECT_DOUBLE_EQ(highest_of(many), 0.1);
  many.at(0, 8) = 0.9;
  EXPECT_DOUBLE_EQ(highest_of(many), 0.9);
}

TEST(Grids, CausalOnesShowTheLastQueries) {
  const float values[] = {1, 2, 3, 4, 5, 6};
  const auto masked = [](const Grid& grid) {
    std::string text;
    for (const double value : grid.values)
      text += std::isnan(value) ? '-' : static_cast<char>('0' + static_cast<int>(value));
    return text;
  };
  EXPECT_EQ(masked(grid_of(values, 2, 3, true)), "12-456");
  EXPECT_EQ(masked(grid_of(values, 1, 6, true)), "123456");
  EXPECT_EQ(masked(grid_of(values, 3, 2, true)), "--3-56");  // the first query comes before all keys
  EXPECT_EQ(masked(grid_of(values, 2, 3, false)), "123456");
}

TEST(Grids, SizesAreCheckedAtTheirLimits) {
  EXPECT_NO_THROW(check_grid(grid_of(5, 1, 0.0), 5));
  EXPECT_NO_THROW(check_grid(grid_of(1, 5, 0.0), 5));
  EXPECT_THROW(check_grid(grid_of(6, 1, 0.0), 5), InvalidArgument);
  EXPECT_THROW(check_grid(grid_of(1, 6, 0.0), 5), InvalidArgument);
  EXPECT_THROW(check_grid({0, 1, {}}, 5), InvalidArgument);
  EXPECT_THROW(check_grid({1, 0, {}}, 5), InvalidArgument);
  EXPECT_THROW(check_grid({2, 2, {1, 2, 3}}, 5), InvalidArgument);
  EXPECT_THROW(check_grid({2, 2, {1, 2, 3, 4, 5}}, 5), InvalidArgument);
}

TEST(Pooling, TheLastCellsHoldTheRest) {
  HeatMap map{.values = grid_of(5, 3, 0.0), .across = {.name = "keys", .first = 10, .per_cell = 4}};
  for (std::int64_t i = 0; i < 5; ++i)
    for (std::int64_t j = 0; j < 3; ++j) map.values.at(i, j) = static_cast<double>(i + 1) * (j == 1 ? -1 : 1);
  const HeatMap mass = pooled(map, 3, draw::Pooling::mass), peak = pooled(map, 3, draw::Pooling::peak);
  ASSERT_EQ(mass.values.rows, 3);
  ASSERT_EQ(mass.values.cols, 2);
  EXPECT_DOUBLE_EQ(mass.values.at(0, 0), 0);    // (1 − 1 + 2 − 2) / 2 queries
  EXPECT_DOUBLE_EQ(mass.values.at(0, 1), 1.5);  // (1 + 2) / 2
  EXPECT_DOUBLE_EQ(mass.values.at(2, 1), 5);    // only the last query, not half of it
  EXPECT_DOUBLE_EQ(peak.values.at(2, 0), 5);
  EXPECT_DOUBLE_EQ(peak.values.at(1, 0), 4);  // of 3, −3, 4, −4 the first of the largest
  EXPECT_EQ(mass.across.per_cell, 8);
  EXPECT_EQ(mass.across.tokens, 12);
  EXPECT_EQ(mass.across.first, 10);
  EXPECT_EQ(pooled(map, 5, draw::Pooling::peak).values.rows, 5);
  EXPECT_EQ(pooled(map, 4, draw::Pooling::peak).values.rows, 3);
  EXPECT_THROW(pooled(map, 0, draw::Pooling::peak), InvalidArgument);
}

TEST(Pooling, WhatIsHiddenCountsOnlyWhereNothingIsShown) {
  HeatMap map{.values = {2, 4, {kMasked, kEvicted, kMasked, -3, kMasked, kMasked, kMasked, kEvicted}}};
  const Grid peak = pooled(map, 2, draw::Pooling::peak).values;
  EXPECT_EQ(peak.at(0, 0), kEvicted);
  EXPECT_EQ(peak.at(0, 1), -3);
  map.values = grid_of(2, 2, kMasked);
  EXPECT_TRUE(std::isnan(pooled(map, 1, draw::Pooling::mass).values.at(0, 0)));
}

TEST(Distance, QueriesOfLaterTokensKeepTheirDistances) {
  HeatMap map{.values = {2, 3, {1, 2, kMasked, 3, 4, 5}}};
  map.down.first = 1;  // queries 1 and 2 of three tokens
  const HeatMap sheared = by_distance(map);
  ASSERT_EQ(sheared.values.cols, 3);
  EXPECT_EQ(sheared.across.first, 0);
  EXPECT_EQ(sheared.values.at(0, 0), 2);  // query 1 and key 1
  EXPECT_EQ(sheared.values.at(0, 1), 1);
  EXPECT_TRUE(std::isnan(sheared.values.at(0, 2)));
  EXPECT_EQ(sheared.values.at(1, 0), 5);
  EXPECT_EQ(sheared.values.at(1, 2), 3);
  map.values = grid_of(2, 3, kMasked);
  EXPECT_EQ(by_distance(map).values.cols, 1);
  map.down.per_cell = 2;
  EXPECT_THROW(by_distance(map), InvalidArgument);
}

TEST(Columns, TextIsCutWhereItStillFits) {
  use_utf8();
  EXPECT_EQ(cut_to("abc", 3), "abc");
  EXPECT_EQ(cut_to("abc", 2), "ab");
  EXPECT_EQ(cut_to("abc", 0), "");
  EXPECT_EQ(cut_to("abc", -1), "");
  EXPECT_EQ(cut_to("注意", 4), "注意");
  EXPECT_EQ(cut_to("注意", 3), "注");
  EXPECT_EQ(cut_to("e\xCC\x81x", 1), "e\xCC\x81");  // a mark takes no column
  EXPECT_EQ(columns_of("e\xCC\x81 注"), 4);
  EXPECT_EQ(padded("ab", 3), "ab ");
  EXPECT_EQ(padded("abcd", 3), "abc");
  EXPECT_EQ(right_aligned("注", 3), " 注");
  EXPECT_EQ(widest({"a", "注意", "abc"}), 4);
  EXPECT_EQ(widest({}), 0);
}

TEST(Labels, AreCutBehindTheLastCharacterThatFits) {
  EXPECT_EQ(token_label("ab", 2), "ab");
  EXPECT_EQ(token_label("abc", 2), "a…");
  EXPECT_EQ(token_label("注意力", 3), "注意力");
  EXPECT_EQ(token_label("注意力机", 3), "注意…");
  EXPECT_EQ(token_label("abc", 2, true), "a..");
  EXPECT_EQ(token_label("", 16, true), "''");
  EXPECT_EQ(token_label(" ", 16), "␣");
}

TEST(Screens, XtermColoursAreTheNearestOfTheCube) {
  const auto cube = [](int value) { return escape(Colours::palette, 38, {static_cast<std::uint8_t>(value), 0, 0}); };
  // The cube's steps are 0, 95, 135, 175, 215, 255; a value in the middle goes up.
  const std::pair<int, int> kSteps[] = {{0, 0},   {47, 0},  {48, 1},  {95, 1},  {114, 1}, {115, 2}, {154, 2},
                                        {155, 3}, {194, 3}, {195, 4}, {234, 4}, {235, 5}, {255, 5}};
  for (const auto& [value, step] : kSteps)
    EXPECT_EQ(cube(value), "\x1b[38;5;" + std::to_string(16 + 36 * step) + "m") << value;
  EXPECT_EQ(escape(Colours::palette, 48, {255, 135, 95}), "\x1b[48;5;" + std::to_string(16 + 36 * 5 + 6 * 2 + 1) + "m");
  EXPECT_EQ(escape(Colours::full, 48, {1, 22, 255}), "\x1b[48;2;1;22;255m");
}

TEST(Screens, ADifferenceHasItsColoursAndItsEnds) {
  const HeatMap map{.values = {1, 2, {-0.5, 0.5}}, .colours = {.palette = Palette::difference, .high = 0.5}};
  const std::string text = to_terminal(map, {.colours = Colours::full});
  const std::size_t less = text.find("140;208;255m"), more = text.find("255;196;128m");
  ASSERT_NE(less, std::string::npos);
  ASSERT_NE(more, std::string::npos);
  EXPECT_LT(less, more);
  EXPECT_NE(text.find("-0.5 "), std::string::npos);
  EXPECT_NE(to_terminal(map, {}).find("-0.5 .:-=+*#%@ 0.5"), std::string::npos) << to_terminal(map, {});
}

TEST(Screens, ShadesHaveTheirPlaces) {
  EXPECT_EQ(shade(0), '.');
  EXPECT_EQ(shade(1), '@');
  EXPECT_EQ(shade(-1), '.');
  EXPECT_EQ(shade(2), '@');
  EXPECT_EQ(shade(0.5), '+');
  EXPECT_EQ(shade(0.0624), '.');
  EXPECT_EQ(shade(0.0626), ':');
}

TEST(Screens, TheLastRowOfAnOddMapIsShown) {
  const ColourScale scale{.scaling = Scaling::linear, .high = 1};
  const Grid grid{3, 2, {0, 1, 1, kMasked, 1, kEvicted}};
  EXPECT_EQ(two_rows(grid, scale, {}, 0), "+@");  // means: 0.5, and a single 1
  EXPECT_EQ(two_rows(grid, scale, {}, 2), "@x");
}

TEST(Screens, ASparklineOfEqualValuesIsLowAndTakesTheLatest) {
  EXPECT_EQ(sparkline({5, 5, 5}, 80, {}), "___");
  EXPECT_EQ(sparkline({1, 2, 3}, 3, {}), "_=#");
  EXPECT_EQ(sparkline({9, 1, 2, 3}, 3, {}), "_=#");
  EXPECT_EQ(sparkline({1, INFINITY, -INFINITY, 2}, 80, {}), "_  #");
  EXPECT_EQ(sparkline({1, 2}, 0, {}), "");
  EXPECT_EQ(sparkline({1, 2}, -1, {}), "");
}

TEST(Screens, NegativeBarsEndWhereOthersBegin) {
  const Bars bars{.labels = {"a", "b", "c"}, .kinds = {{"", {-1, 1, NAN}}}};
  const std::string text = to_terminal(bars, {});
  const std::size_t line = text.find('\n');
  const std::string less = text.substr(0, line), more = text.substr(line + 1, text.find('\n', line + 1) - line - 1);
  EXPECT_EQ(less.rfind('#') + 1, more.find('#'));
  EXPECT_EQ(std::count(less.begin(), less.end(), '#'), std::count(more.begin(), more.end(), '#'));
  EXPECT_TRUE(less.ends_with(" -1"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);  // no line for NaN
}

TEST(Screens, LinesNameTheFourHeaviestKeysThatAreHeavyEnough) {
  const TokenLines lines{.queries = {"q", "r"},
                         .keys = {"a", "b", "c", "d", "e", "f"},
                         .heads = {{"", {2, 6, {0.1, 0.3, 0.1, 0.25, 0.05, 0.2, 0.5, 0.0199, 0.02, kMasked, 0, 0.48}}}},
                         .least = 0.02};
  const std::string text = to_terminal(lines, {});
  EXPECT_NE(text.find("q ->  b 0.30  d 0.25  f 0.20  a 0.10\n"), std::string::npos) << text;  // a ties with c
  EXPECT_NE(text.find("r ->  a 0.50  f 0.48  c 0.02\n"), std::string::npos) << text;
  TokenLines one = lines;
  one.query = 1;
  EXPECT_EQ(to_terminal(one, {}).find("q ->"), std::string::npos);
  one.query = 2;
  EXPECT_THROW(to_terminal(one, {}), InvalidArgument);
}

TEST(WrappedLines, WordsGoToTheNextLineWhole) {
  use_utf8();
  const auto shown = [](std::vector<std::string> pieces, int columns) {
    WrappedText text;
    std::string out;
    for (const std::string& piece : pieces) out += text.put(piece, columns);
    return out;
  };
  const std::string back = "\x1b[3D\x1b[K\n";
  EXPECT_EQ(shown({"abcd efgh"}, 10), "abcd efgh");  // nine columns: the tenth stays free
  EXPECT_EQ(shown({"abcde fghi"}, 10), "abcde fgh" + back + "fghi");
  EXPECT_EQ(shown({"abcde f", "gh", "i"}, 10), "abcde fgh" + back + "fghi");
  EXPECT_EQ(shown({"abcdefghijk"}, 10), "abcdefghi\njk");  // a word longer than a line breaks where it must
  EXPECT_EQ(shown({"注意力机制"}, 10), "注意力机\n制");
  EXPECT_EQ(shown({"abcdefghi j"}, 10), "abcdefghi\nj");  // no space begins a line
  EXPECT_EQ(shown({"a\x1b[31m\r\n"}, 40), "a\xEF\xBF\xBD[31m\n");
  EXPECT_EQ(shown({"a\tb"}, 40), "a       b");
}

}  // namespace
}  // namespace attend::draw
