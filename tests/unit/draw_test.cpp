// Pictures: what they say, the colours at their places, and what they refuse. No test looks at the form of a letter.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "attend/error.hpp"
#include "draw/drawing.hpp"
#include "draw/html.hpp"
#include "draw/labels.hpp"
#include "draw/picture.hpp"
#include "support/png_pixels.hpp"

namespace attend::draw {
namespace {

using testing::Pixels;
using testing::pixels_of;

constexpr Rgb kBright = {253, 231, 37};  // the end of viridis

// Causal, all weight on the first key.
HeatMap sink_map(std::int64_t tokens) {
  HeatMap map{.captions = {"A head", {"that looks at the first token"}}, .values = grid_of(tokens, tokens, kMasked)};
  for (std::int64_t i = 0; i < tokens; ++i)
    for (std::int64_t j = 0; j <= i; ++j) map.values.at(i, j) = j == 0 ? 1 : 0;
  return map;
}

// What stands in the SVG's layer of text.
std::vector<std::string> texts_of(const std::string& svg) {
  std::vector<std::string> texts;
  for (std::size_t at = 0; (at = svg.find("<text ", at)) != std::string::npos;) {
    const std::size_t from = svg.find('>', at) + 1;
    at = svg.find("</text>", from);
    texts.push_back(svg.substr(from, at - from));
  }
  return texts;
}

bool says(const std::string& svg, const std::string& text) {
  const std::vector<std::string> texts = texts_of(svg);
  return std::find(texts.begin(), texts.end(), text) != texts.end();
}

TEST(Labels, ShowWhatIsInAToken) {
  EXPECT_EQ(token_label("word"), "word");
  EXPECT_EQ(token_label(" word"), "␣word");
  EXPECT_EQ(token_label("  "), "␣␣");
  EXPECT_EQ(token_label("a b "), "a b␣");
  EXPECT_EQ(token_label(" x", 16, true), "_x");
  EXPECT_EQ(token_label("\n"), "\\n");
  EXPECT_EQ(token_label("a\x1b[31m"), "a\\x1b[31m");
  EXPECT_EQ(token_label("\xE2\x80\xAE"
                        "abc"),
            "\\u202eabc");  // would turn the direction of reading
  EXPECT_EQ(token_label("\xE4\xB8"), "\\xe4\\xb8");
  EXPECT_EQ(token_label("注意力"), "注意力");
  EXPECT_EQ(token_label(""), "∅");
  EXPECT_EQ(token_label("abcdefgh", 5), "abcd…");
  EXPECT_EQ(token_label("abcde", 5), "abcde");
  EXPECT_EQ(token_label(std::string(1 << 20, 'x'), 4), "xxx…");
}

TEST(Colours, PlaceAndValueAreInverse) {
  for (const Palette palette : {Palette::viridis, Palette::cividis, Palette::difference})
    for (const Scaling scaling : {Scaling::square_root, Scaling::linear, Scaling::logarithmic}) {
      const ColourScale scale{palette, scaling, 0.5};
      for (const double value : {0.001, 0.02, 0.3, 0.5}) {
        EXPECT_NEAR(value_at(place_of(value, scale), scale), value, 1e-12);
        if (palette == Palette::difference) {
          EXPECT_NEAR(value_at(place_of(-value, scale), scale), -value, 1e-12);
        }
      }
      EXPECT_EQ(place_of(0, scale), palette == Palette::difference ? 0.5 : 0);
      EXPECT_EQ(place_of(7, scale), 1);
    }
}

TEST(Colours, TheHighestIsRoundAndLeavesOutliers) {
  EXPECT_EQ(highest_of(Grid{1, 3, {0.1, 0.52, kMasked}}), 0.5);
  EXPECT_EQ(highest_of(Grid{1, 2, {kMasked, kEvicted}}), 1);
  EXPECT_EQ(highest_of(Grid{1, 2, {0, 0}}), 1);
  Grid many = grid_of(100, 100, 0.2);
  many.at(0, 0) = 1;
  EXPECT_EQ(highest_of(many), 0.2);
}

TEST(Pictures, AHeatMapHasItsColoursInItsCells) {
  HeatMap map = sink_map(300);
  const Pixels pixels = pixels_of(to_png(map));
  // 300 cells of 2 units are 4 pixels each; the first cell is the first bright one.
  std::int64_t left = 0, top = 0;
  while (top < pixels.height && pixels.at(left, top) != kBright)
    if (++left == pixels.width) left = 0, ++top;
  ASSERT_LT(top, pixels.height);
  left -= 1, top -= 1;  // under half of the frame's line
  const auto cell = [&](std::int64_t i, std::int64_t j) { return pixels.at(left + 4 * j + 2, top + 4 * i + 2); };
  const Rgb zero = colour_at(0, Palette::viridis), masked = cell(0, 1);
  EXPECT_NE(masked, zero);
  for (std::int64_t i = 0; i < 300; ++i) {
    EXPECT_EQ(cell(i, 0), kBright) << i;
    if (i > 0) {
      EXPECT_EQ(cell(i, i), zero) << i;
    }
    if (i < 299) {
      EXPECT_EQ(cell(i, i + 1), masked) << i;
    }
  }
}

TEST(Pictures, MaskedZeroAndEvictedLookDifferent) {
  const auto distance = [](const Rgb& a, const Rgb& b) {
    return std::abs(a[0] - b[0]) + std::abs(a[1] - b[1]) + std::abs(a[2] - b[2]);
  };
  for (const Theme theme : {Theme::light, Theme::dark})
    for (const Palette palette : {Palette::viridis, Palette::cividis, Palette::difference}) {
      const ColourScale scale{.palette = palette, .high = 1};
      const auto colour = [&](double value) { return cell_colour(value, scale, ink_of(theme)); };
      EXPECT_GT(distance(colour(0), colour(kMasked)), 30);
      EXPECT_GT(distance(colour(0), colour(kEvicted)), 30);
      EXPECT_GT(distance(colour(kMasked), colour(kEvicted)), 30);
    }
}

TEST(Pictures, SayTitleLabelsAndLegend) {
  HeatMap map = sink_map(4);
  map.values.at(3, 1) = kEvicted;
  map.across.labels = map.down.labels = {"<|im_start|>", " 注意力", "\n", std::string(100, 'a')};
  const std::string svg = to_svg(map);
  for (const char* text :
       {"A head", "that looks at the first token", "&lt;|im_start|&gt;", "␣注意力", "\\n", "aaaaaaaaaaaaaaa…", "keys",
        "queries", "share of the query's attention (square-root scale)", "masked", "evicted", "1.00", "0"})
    EXPECT_TRUE(says(svg, text)) << text;
  EXPECT_NE(svg.find("<title>A head</title>"), std::string::npos);
  EXPECT_FALSE(says(to_svg(sink_map(4)), "evicted"));
  const std::string chinese = to_svg(map, {.language = Language::chinese});
  for (const char* text : {"键", "查询", "被掩码遮住", "已淘汰"}) EXPECT_TRUE(says(chinese, text)) << text;
}

TEST(Pictures, NumbersStandInLargeCellsOnly) {
  EXPECT_TRUE(says(to_svg(sink_map(20)), "1.00"));
  EXPECT_FALSE(says(to_svg(sink_map(40)), "1.00"));
  HeatMap map = sink_map(20);
  map.numbers = false;
  EXPECT_FALSE(says(to_svg(map), "1.00"));
}

TEST(Pictures, ALongMapHasNumbersOnItsAxes) {
  HeatMap map = sink_map(512);
  map.across.per_cell = map.down.per_cell = 8;
  map.down.first = map.across.first = 4096;
  const std::string svg = to_svg(map);
  for (const char* text : {"4096", "6144", "8192"}) EXPECT_TRUE(says(svg, text)) << text;
}

TEST(Pictures, TheSameBytesEveryTime) {
  HeatMap map = sink_map(12);
  map.across.labels = map.down.labels = std::vector<std::string>(12, "词");
  const std::string svg = to_svg(map);
  const auto png = to_png(map), pdf = to_pdf(map);
  (void)to_svg(sink_map(3));
  EXPECT_EQ(to_svg(map), svg);
  EXPECT_EQ(to_png(map), png);
  EXPECT_EQ(to_pdf(map), pdf);
  EXPECT_NE(to_svg(map, {.theme = Theme::dark}), svg);
}

TEST(Pictures, ThemesHaveTheirPaper) {
  EXPECT_EQ(pixels_of(to_png(sink_map(3))).at(2, 2), (Rgb{255, 255, 255}));
  const Pixels dark = pixels_of(to_png(sink_map(3), {.theme = Theme::dark}));
  EXPECT_LT(dark.at(2, 2)[0], 40);
  // To the last pixel.
  EXPECT_EQ(dark.at(dark.width - 1, dark.height - 1), dark.at(2, 2));
}

TEST(Pictures, TheAreaOfADotIsItsWeight) {
  const auto area = [](double weight) {
    HeatMap map{.values = {1, 1, {weight}}, .colours = {.high = 1}, .mark = Mark::dot};
    const Pixels with = pixels_of(to_png(map, {.pixels = 4}));
    return static_cast<double>(with.count({0, 114, 178}));
  };
  const double none = area(0), whole = area(1) - none;  // the legend has dots of its own
  EXPECT_NEAR((area(0.25) - none) / whole, 0.25, 0.03);
  EXPECT_NEAR((area(0.5) - none) / whole, 0.5, 0.03);
}

TEST(Pictures, ByDistanceMovesEveryCell) {
  HeatMap map = sink_map(5);
  for (std::int64_t i = 0; i < 5; ++i)
    for (std::int64_t j = 0; j <= i; ++j) map.values.at(i, j) = static_cast<double>(10 * i + j);
  const HeatMap sheared = by_distance(map);
  EXPECT_EQ(sheared.values.cols, 5);
  for (std::int64_t i = 0; i < 5; ++i)
    for (std::int64_t d = 0; d < 5; ++d) {
      if (d <= i)
        EXPECT_EQ(sheared.values.at(i, d), static_cast<double>(10 * i + i - d));
      else
        EXPECT_TRUE(std::isnan(sheared.values.at(i, d)));
    }
  HeatMap full{.values = grid_of(3, 3, 1.0)};
  EXPECT_EQ(by_distance(full).across.first, -2);
  EXPECT_EQ(by_distance(full).values.cols, 5);
  (void)to_svg(by_distance(full));
}

TEST(Pictures, PoolingKeepsMassAndPeaks) {
  HeatMap map{.values = grid_of(5, 5, kMasked)};
  for (std::int64_t i = 0; i < 5; ++i)
    for (std::int64_t j = 0; j <= i; ++j) map.values.at(i, j) = 1.0 / static_cast<double>(i + 1);
  const HeatMap mass = pooled(map, 3, Pooling::mass), peak = pooled(map, 3, Pooling::peak);
  EXPECT_EQ(mass.values.rows, 3);
  EXPECT_EQ(mass.across.per_cell, 2);
  EXPECT_EQ(mass.across.tokens, 5);
  EXPECT_DOUBLE_EQ(mass.values.at(0, 0), 1);
  EXPECT_DOUBLE_EQ(mass.values.at(2, 0) + mass.values.at(2, 1) + mass.values.at(2, 2), 1);
  EXPECT_TRUE(std::isnan(mass.values.at(0, 1)));
  EXPECT_DOUBLE_EQ(peak.values.at(1, 0), 1.0 / 3);
  EXPECT_EQ(pooled(map, 5, Pooling::mass).values.rows, 5);
}

TEST(Pictures, LinesSheetsChartsAndBarsSayTheirNames) {
  TokenLines lines{.queries = {"a", "b"}, .keys = {"a", "b"}, .heads = {{"head 7", sink_map(2).values}}, .least = 0.03};
  EXPECT_TRUE(says(to_svg(lines), "head 7"));
  EXPECT_NE(to_svg(lines).find("weights below 0.03 are not drawn"), std::string::npos);

  HeadSheet sheet{
      .heads = 4, .kv_heads = 2, .cells = std::vector<HeadSheet::Cell>(8, {sink_map(4).values, "sink 1.00"})};
  const std::string shown = to_svg(sheet);
  for (const char* text : {"KV 0", "KV 1", "3", "sink 1.00", "layer", "head"}) EXPECT_TRUE(says(shown, text)) << text;
  EXPECT_FALSE(says(shown, "KV 2"));

  Chart chart{.captions = {"Loss", {}, "BUSY"},
              .panels = {{"run", {{"training", {{1, 3}, {100, 2}}}, {"none", {}}}, {.name = "step"}, {.base = 10}}}};
  for (const char* text : {"Loss", "BUSY", "run", "training", "step", "100", "10"})
    EXPECT_TRUE(says(to_svg(chart), text)) << text;
  EXPECT_FALSE(says(to_svg(chart), "none"));

  Bars bars{.labels = {" cat", " 狗"}, .kinds = {{"before", {0.5, 0.25}}, {"after", {-0.5, NAN}}}};
  for (const char* text : {"␣cat", "␣狗", "before", "after", "0.25", "-0.5"})
    EXPECT_TRUE(says(to_svg(bars), text)) << text;
}

TEST(Pictures, BarsInPanelsShareTheirLabels) {
  const Bars bars{.labels = {"case"},
                  .kinds = {{"f32", {2}, {{1.5, 3}}, "forward"}, {"f32", {0.5}, {}, "backward"}},
                  .across = {.base = 2},
                  .origin = 1};
  const std::vector<std::string> texts = texts_of(to_svg(bars));
  const auto count = [&](const char* text) { return std::count(texts.begin(), texts.end(), text); };
  EXPECT_EQ(count("case"), 1);
  EXPECT_EQ(count("f32"), 1);
  EXPECT_EQ(count("forward"), 1);
  EXPECT_EQ(count("backward"), 1);
}

TEST(Pictures, AnSvgForReadersHoldsBothThemes) {
  const std::string both = to_svg(sink_map(3), {.theme = Theme::readers});
  for (const Theme theme : {Theme::light, Theme::dark}) {
    const std::string one = to_svg(sink_map(3), {.theme = theme});
    const std::size_t from = one.find("<title>"), to = one.rfind("</svg>");
    EXPECT_NE(both.find(one.substr(from, to - from)), std::string::npos);
  }
  EXPECT_NE(both.find("prefers-color-scheme:dark"), std::string::npos);
  EXPECT_EQ(to_png(sink_map(3), {.theme = Theme::readers}), to_png(sink_map(3)));
}

TEST(Pictures, OddNumbersDoNotHurt) {
  HeatMap map{.values = {2, 2, {INFINITY, kEvicted, -1e300, 1e300}}};
  Chart chart{.panels = {{"p", {{"s", {{0, NAN}, {1, INFINITY}, {2, 1e300}, {3, -1e300}, {4, 0}}}}}}};
  Chart logarithmic{.panels = {{"p", {{"s", {{-1, 2}, {0, 0}, {1e-300, 1e300}}}}, {.base = 2}, {.base = 10}}}};
  Chart flat{.panels = {{"p", {{"s", {{5, 7}}}}}}};
  Bars bars{.labels = {"a", "b"}, .kinds = {{"", {NAN, 0}}}};
  for (const Picture& picture : std::vector<Picture>{map, chart, logarithmic, flat, bars}) {
    EXPECT_FALSE(to_svg(picture).empty());
    EXPECT_FALSE(to_png(picture).empty());
  }
}

TEST(Pictures, RefuseWhatDoesNotFit) {
  const auto refused = [](const Picture& picture) {
    try {
      (void)to_svg(picture);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refused(HeatMap{}), "picture: a grid of 0 x 0 cells, expected 1 to 2048 along a side");
  EXPECT_EQ(refused(HeatMap{.values = {2, 2, {1, 2, 3}}}), "picture: 3 values in a grid of 2 x 2 cells");
  EXPECT_NE(refused(HeatMap{.values = grid_of(1, 4096, 0.0)}), "");
  HeatMap labels = sink_map(3);
  labels.down.labels = {"one"};
  EXPECT_EQ(refused(labels), "picture: 1 labels down for 3 cells");
  EXPECT_NE(refused(TokenLines{}), "");
  EXPECT_NE(refused(TokenLines{.queries = {"a"}, .keys = {"b"}, .heads = {{"h", grid_of(2, 1, 0.0)}}}), "");
  EXPECT_NE(refused(HeadSheet{.heads = 3, .cells = std::vector<HeadSheet::Cell>(4)}), "");
  EXPECT_NE(refused(HeadSheet{.heads = 4, .kv_heads = 3, .cells = std::vector<HeadSheet::Cell>(4)}), "");
  EXPECT_NE(refused(Chart{}), "");
  EXPECT_NE(refused(Bars{.labels = {"a"}, .kinds = {{"k", {1, 2}}}}), "");
  EXPECT_NE(refused(Bars{.labels = {"a"}, .kinds = {{"k", {1}}}, .across = {.base = 2}}), "");
  EXPECT_THROW(to_png(sink_map(2), {.pixels = 100}), InvalidArgument);
  EXPECT_THROW(to_file_bytes("picture.jpg", sink_map(2)), InvalidArgument);
}

TEST(Pictures, FilesByTheirEnding) {
  const auto begins = [](const std::string& name, std::string_view with) {
    const auto bytes = to_file_bytes(name, sink_map(2));
    return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()).starts_with(with);
  };
  EXPECT_TRUE(begins("a.png", "\x89PNG"));
  EXPECT_TRUE(begins("a.svg", "<?xml"));
  EXPECT_TRUE(begins("a.pdf", "%PDF"));
}

TEST(Pictures, AFontThatLacksLettersIsNamed) {
  HeatMap map = sink_map(1);
  EXPECT_EQ(font_advice(map), "");
  map.across.labels = {"\xF3\xB0\x80\x80"};  // for private use: in no font
  EXPECT_NE(font_advice(map).find("fonts-noto-cjk"), std::string::npos);
}

TEST(Html, HoldsEverythingAndAsksForNothing) {
  const Page page{
      .title = "A <page>", .sections = {{"One & two", {"text \x1b[31m <script>"}, {sink_map(2)}}}, .json = "{\"a\":1}"};
  const std::string html = to_html(page);
  EXPECT_NE(html.find("<title>A &lt;page&gt;</title>"), std::string::npos);
  EXPECT_NE(html.find("One &amp; two"), std::string::npos);
  EXPECT_NE(html.find("\\x1b[31m &lt;script&gt;"), std::string::npos);
  EXPECT_NE(html.find("id=\"data\">eyJhIjoxfQ==</script>"), std::string::npos);
  EXPECT_NE(html.find("prefers-color-scheme: dark"), std::string::npos);
  EXPECT_EQ(html.find("http://"), std::string::npos);
  EXPECT_EQ(html.find("https://"), std::string::npos);
}

}  // namespace
}  // namespace attend::draw
