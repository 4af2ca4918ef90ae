// Lines between tokens: queries on the left, keys on the right.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <compare>

#include "attend/error.hpp"
#include "draw/drawing.hpp"
#include "draw/labels.hpp"

namespace attend::draw {
namespace {

constexpr double kBetween = 260, kLongestLabel = 130, kHeadLine = 18;
constexpr std::int64_t kMostTokens = 512, kMostHeads = 64;

Rgb head_colour(std::size_t index, std::size_t heads, const Ink& ink) {
  return heads == 1 ? ink.first : line_style(index + 1, ink).colour;
}

double widest(const std::vector<std::string>& labels, double size) {
  double most = 0;
  for (const std::string& label : labels) most = std::max(most, text_width(label, {size}));
  return std::min(most, kLongestLabel);
}

double highest_weight(const TokenLines& lines) {
  double most = 0;
  for (const TokenLines::Head& head : lines.heads)
    for (const double value : head.weights.values)
      if (std::isfinite(value)) most = std::max(most, value);
  return most > 0 ? most : 1;
}

struct Line {
  double weight;
  std::size_t head;
  std::int64_t query, key;

  auto operator<=>(const Line&) const = default;
};

// The heaviest last, on top of the others.
std::vector<Line> lines_of(const TokenLines& lines) {
  std::vector<Line> all;
  for (std::size_t h = 0; h < lines.heads.size(); ++h) {
    const Grid& weights = lines.heads[h].weights;
    for (std::int64_t i = 0; i < weights.rows; ++i)
      for (std::int64_t j = 0; j < weights.cols; ++j)
        if ((lines.query < 0 || lines.query == i) && std::isfinite(weights.at(i, j)) && weights.at(i, j) >= lines.least)
          all.push_back({weights.at(i, j), h, i, j});
  }
  std::sort(all.begin(), all.end());
  return all;
}

void draw_legend(Pen& pen, const TokenLines& lines, double left, double top, const Style& style) {
  const Ink& ink = ink_of(style.theme);
  double y = top + 8;
  for (std::size_t h = 0; h < lines.heads.size(); ++h, y += kHeadLine) {
    const Rgb colour = head_colour(h, lines.heads.size(), ink);
    for (int n = 0; n < 20; ++n)
      pen.line({{left + 3 * n, y}, {left + 3 * n + 3, y}}, {.width = 4}, {colour, (n + 1) / 20.0});
    pen.text({left + 70, y}, kLegendFont, {ink.text}, lines.heads[h].name);
  }
  const Words& words = words_of(style.language);
  const std::string note = fmt::format(fmt::runtime(words.less_than), short_number(lines.least));
  pen.text({left, y}, kLegendFont, {ink.quiet},
           fmt::format("{} (0 – {}); {}", words.darker, short_number(highest_weight(lines)), note));
}

}  // namespace

void check(const TokenLines& lines) {
  const auto Q = std::ssize(lines.queries), K = std::ssize(lines.keys);
  if (Q < 1 || K < 1 || Q > kMostTokens || K > kMostTokens)
    throw InvalidArgument(fmt::format("picture: lines between {} and {} tokens, expected 1 to {}", Q, K, kMostTokens));
  if (lines.heads.empty() || std::ssize(lines.heads) > kMostHeads)
    throw InvalidArgument(fmt::format("picture: lines of {} heads, expected 1 to {}", lines.heads.size(), kMostHeads));
  for (const TokenLines::Head& head : lines.heads) {
    check_grid(head.weights, kMostTokens);
    if (head.weights.rows != Q || head.weights.cols != K)
      throw InvalidArgument(fmt::format("picture: weights of {} x {} for {} queries and {} keys", head.weights.rows,
                                        head.weights.cols, Q, K));
  }
  if (lines.query >= Q) throw InvalidArgument(fmt::format("picture: query {} of {}", lines.query, Q));
}

Drawing drawing_of(const TokenLines& lines, const Style& style) {
  const Ink& ink = ink_of(style.theme);
  const auto rows = static_cast<double>(std::max(lines.queries.size(), lines.keys.size()));
  const double step = std::clamp(900 / rows, 11.0, 20.0), size = std::min(12.0, 0.85 * step);
  const std::vector<std::string> queries = token_labels(lines.queries), keys = token_labels(lines.keys);
  const double left_width = widest(queries, size), right_width = widest(keys, size);
  const double height = 24 + rows * step, legend = kHeadLine * static_cast<double>(lines.heads.size() + 1) + 4;
  const Sheet sheet(lines.captions, left_width + kBetween + right_width + 16, height + 12 + legend, style);
  const double top = sheet.top() + 24, left = sheet.left() + left_width + 8, right = left + kBetween - 8;
  return sheet.drawing([=, &ink, lines = lines](Pen& pen) {
    pen.text({left, top - 16, Anchor::end}, kNameFont, {ink.quiet}, translated("queries", style.language));
    pen.text({right, top - 16}, kNameFont, {ink.quiet}, translated("keys", style.language));
    const auto row = [&](auto n) { return top + (static_cast<double>(n) + 0.5) * step; };
    if (lines.query >= 0)
      pen.fill({left - left_width - 6, row(lines.query) - step / 2, left_width + 10, step}, {ink.grid});
    const double highest = highest_weight(lines),
                 beside = std::min(2.5, 0.7 * step / static_cast<double>(lines.heads.size()));
    // Heads lie beside each other, not over each other.
    const auto shift = [&](std::size_t head) {
      return beside * (static_cast<double>(head) - 0.5 * static_cast<double>(lines.heads.size() - 1));
    };
    for (const Line& line : lines_of(lines))
      pen.wave(
          left + 4, row(line.query) + shift(line.head), right - 4, row(line.key) + shift(line.head), 1.6,
          {head_colour(line.head, lines.heads.size(), ink), std::sqrt(std::clamp(line.weight / highest, 0.0, 1.0))});
    for (std::size_t n = 0; n < queries.size(); ++n)
      pen.text({left, row(n), Anchor::end, false, kLongestLabel}, {size}, {ink.text}, queries[n]);
    for (std::size_t n = 0; n < keys.size(); ++n)
      pen.text({right, row(n), Anchor::start, false, kLongestLabel}, {size}, {ink.text}, keys[n]);
    draw_legend(pen, lines, sheet.left(), top + rows * step + 12, style);
  });
}

}  // namespace attend::draw
