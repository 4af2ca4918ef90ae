// Grids as pictures: cells or dots, tokens or numbers on both axes.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "attend/error.hpp"
#include "draw/drawing.hpp"
#include "draw/labels.hpp"

namespace attend::draw {
namespace {

constexpr double kMapSide = 640, kNumberCell = 28, kLongestLabel = 130;
constexpr double kLeastLabel = 9;  // units that a line of labels needs

// Labels are drawn for up to kLabelledCells tokens; beyond, numbers.
bool labelled(const TokenAxis& axis) {
  return !axis.labels.empty() && std::ssize(axis.labels) <= kLabelledCells;
}

struct Layout {
  double cell_width = 0, cell_height = 0;
  double label_size = 0;                  // of the font
  std::vector<std::string> across, down;  // labels; empty: numbers
  bool upright = false;                   // labels above the columns read from left to right
  double above = 0, beside = 0;           // what the labels need
};

// Whole pixels of a PNG, so that all cells are equal.
double cell_side(std::int64_t cells, bool has_labels, double pixels) {
  const double room = std::floor(kMapSide * pixels / static_cast<double>(cells)) / pixels;
  return std::clamp(room, has_labels ? kLeastLabel : 1 / pixels, 44.0);
}

double widest(const std::vector<std::string>& labels, double size) {
  double most = 0;
  for (const std::string& label : labels) most = std::max(most, text_width(label, {size}));
  return std::min(most, kLongestLabel);
}

Layout layout_of(const HeatMap& map, const Style& style) {
  Layout at;
  const Grid& g = map.values;
  const bool across = labelled(map.across), down = labelled(map.down);
  const double side = cell_side(std::max(g.rows, g.cols), across || down, style.pixels);
  // A few long rows are drawn higher than wide cells would be.
  at.cell_width = g.cols * 8 < g.rows ? std::min(24.0, cell_side(g.cols, across, style.pixels)) : side;
  at.cell_height = g.rows * 8 < g.cols ? std::min(24.0, cell_side(g.rows, down, style.pixels)) : side;
  at.label_size = std::clamp(0.8 * std::min(at.cell_width, at.cell_height), 7.5, 12.0);
  if (across) at.across = token_labels(map.across.labels);
  if (down) at.down = token_labels(map.down.labels);
  at.above = 24, at.beside = 14 + text_width(std::to_string(map.down.first + g.rows * map.down.per_cell), kLegendFont);
  if (across) {
    at.upright = widest(at.across, at.label_size) <= at.cell_width - 3;
    at.above = at.upright ? at.label_size + 10 : widest(at.across, at.label_size) + 10;
  }
  if (down) at.beside = widest(at.down, at.label_size) + 10;
  return at;
}

// Multiples of a power of two, eight steps at most, and the end unless it would run into the last of them.
std::vector<std::int64_t> number_ticks(std::int64_t first, std::int64_t tokens) {
  const auto step = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>((tokens + 7) / 8)));
  std::vector<std::int64_t> ticks;
  for (std::int64_t token = first_multiple(first, step); token <= first + tokens; token += step) ticks.push_back(token);
  if (ticks.empty() || 2 * (first + tokens - ticks.back()) > step) ticks.push_back(first + tokens);
  return ticks;
}

struct TickPlace {
  double part;  // cells from the beginning
  std::string label;
};
// Between cells that hold many tokens; in the middle of a cell that is one.
std::vector<TickPlace> tick_places(const TokenAxis& axis, std::int64_t cells, double cell, double room) {
  std::vector<TickPlace> places;
  if (axis.per_cell == 1 && cells <= kLabelledCells) {
    const auto step = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(std::ceil(room / cell))));
    for (std::int64_t n = first_multiple(axis.first, step) - axis.first; n < cells; n += step)
      places.push_back({static_cast<double>(n) + 0.5, std::to_string(axis.first + n)});
    return places;
  }
  const std::int64_t tokens = axis.tokens > 0 ? axis.tokens : cells * axis.per_cell;
  for (const std::int64_t token : number_ticks(axis.first, tokens))
    places.push_back(
        {static_cast<double>(token - axis.first) / static_cast<double>(axis.per_cell), std::to_string(token)});
  return places;
}

void draw_across(Pen& pen, const HeatMap& map, const Layout& at, const Box& box, const Ink& ink, Language language) {
  pen.text({box.middle(), box.top - at.above - 8, Anchor::middle}, kNameFont, {ink.quiet},
           translated(map.across.name, language));
  for (std::size_t n = 0; n < at.across.size(); ++n) {
    const double x = box.left + (static_cast<double>(n) + 0.5) * at.cell_width;
    const Place place = at.upright ? Place{x, box.top - 4 - at.label_size / 2, Anchor::middle}
                                   : Place{x, box.top - 6, Anchor::start, true, kLongestLabel};
    pen.text(place, {at.label_size}, {ink.text}, at.across[n]);
  }
  if (!at.across.empty()) return;
  for (const TickPlace& tick : tick_places(map.across, map.values.cols, at.cell_width, 34)) {
    const double x = box.left + tick.part * at.cell_width;
    pen.line({{x, box.top - 5}, {x, box.top}}, {}, {ink.quiet});
    pen.text({x, box.top - 13, Anchor::middle}, kLegendFont, {ink.text}, tick.label);
  }
}

void draw_down(Pen& pen, const HeatMap& map, const Layout& at, const Box& box, const Ink& ink, Language language) {
  pen.text({box.left - at.beside - 8, box.centre(), Anchor::middle, true}, kNameFont, {ink.quiet},
           translated(map.down.name, language));
  for (std::size_t n = 0; n < at.down.size(); ++n)
    pen.text(
        {box.left - 6, box.top + (static_cast<double>(n) + 0.5) * at.cell_height, Anchor::end, false, kLongestLabel},
        {at.label_size}, {ink.text}, at.down[n]);
  if (!at.down.empty()) return;
  for (const TickPlace& tick : tick_places(map.down, map.values.rows, at.cell_height, 14)) {
    const double y = box.top + tick.part * at.cell_height;
    pen.line({{box.left - 5, y}, {box.left, y}}, {}, {ink.quiet});
    pen.text({box.left - 8, y, Anchor::end}, kLegendFont, {ink.text}, tick.label);
  }
}

std::string cell_number(double value) {
  if (std::abs(value) >= 9.995) return short_number(std::abs(value) >= 100 ? std::round(value) : value);
  std::string text = fmt::format("{:.2f}", value);
  if (value == 0) return "0";
  if (text.starts_with("0.")) text.erase(0, 1);
  if (text.starts_with("-0.")) text.erase(1, 1);
  return text;
}

class CellPainter {
 public:
  CellPainter(const HeatMap& map, const Layout& at, const Box& box, const Ink& ink)
      : map_(map), at_(at), box_(box), ink_(ink), scale_(decided(map.colours, {&map.values})) {}

  void cells(Pen& pen) const {
    const Grid& g = map_.values;
    std::vector<Rgb> pixels;
    pixels.reserve(g.values.size());
    for (const double value : g.values) {
      const bool plain = map_.mark == Mark::dot && std::isfinite(value);
      pixels.push_back(plain ? ink_.paper : cell_colour(value, scale_, ink_));
    }
    pen.image(box_, g.cols, g.rows, pixels);
    const double side = std::min(at_.cell_width, at_.cell_height);
    const bool numbers = map_.numbers && map_.mark == Mark::cell && side >= kNumberCell;
    for (std::int64_t row = 0; row < g.rows; ++row)
      for (std::int64_t col = 0; col < g.cols; ++col) {
        const double value = g.at(row, col), x = box_.left + (static_cast<double>(col) + 0.5) * at_.cell_width,
                     y = box_.top + (static_cast<double>(row) + 0.5) * at_.cell_height;
        if (value == kEvicted && side >= 8) cross(pen, x, y, side / 4);
        if (!std::isfinite(value)) continue;
        if (map_.mark == Mark::dot) dot(pen, x, y, side, value);
        if (numbers)
          pen.text({x, y, Anchor::middle}, {std::min(11.0, 0.33 * side)},
                   {readable_on(cell_colour(value, scale_, ink_))}, cell_number(value));
      }
  }

 private:
  void cross(Pen& pen, double x, double y, double r) const {
    pen.line({{x - r, y - r}, {x + r, y + r}}, {}, {ink_.paper});
    pen.line({{x - r, y + r}, {x + r, y - r}}, {}, {ink_.paper});
  }
  // Its area is the value: the radius grows as the root.
  void dot(Pen& pen, double x, double y, double side, double value) const {
    const double radius = 0.47 * side * std::sqrt(std::clamp(std::abs(value) / scale_.high, 0.0, 1.0));
    if (radius < 0.05) return;
    pen.dot(x, y, radius, {map_.colours.palette == Palette::difference && value > 0 ? ink_.second : ink_.first});
  }

  const HeatMap& map_;
  const Layout& at_;
  const Box& box_;
  const Ink& ink_;
  ColourScale scale_;
};

void check_axis(const char* name, const TokenAxis& axis, std::int64_t cells) {
  if (!axis.labels.empty() && std::ssize(axis.labels) != cells)
    throw InvalidArgument(fmt::format("picture: {} labels {} for {} cells", axis.labels.size(), name, cells));
  if (axis.per_cell < 1)
    throw InvalidArgument(fmt::format("picture: {} tokens a cell {}, expected 1 or more", axis.per_cell, name));
  if (axis.first < -(INT64_MAX / 4) || axis.tokens < 0 || axis.first > INT64_MAX / 4 ||
      axis.per_cell > INT64_MAX / 4 / cells || axis.tokens > INT64_MAX / 4)
    throw InvalidArgument(fmt::format("picture: the tokens {} go beyond what can be counted", name));
}

// Of one cell of the pooled grid; what is masked or evicted counts only where there is nothing else.
double pooled_cell(const Grid& g, std::int64_t row, std::int64_t col, std::int64_t n, Pooling pooling) {
  const std::int64_t rows = std::min(n, g.rows - row * n), cols = std::min(n, g.cols - col * n);
  double sum = 0, peak = 0;
  bool any = false, evicted = false;
  for (std::int64_t r = row * n; r < row * n + rows; ++r)
    for (std::int64_t c = col * n; c < col * n + cols; ++c) {
      const double value = g.at(r, c);
      evicted = evicted || value == kEvicted;
      if (!std::isfinite(value)) continue;
      any = true;
      sum += value;
      if (std::abs(value) > std::abs(peak)) peak = value;
    }
  if (!any) return evicted ? kEvicted : kMasked;
  return pooling == Pooling::mass ? sum / static_cast<double>(rows) : peak;
}

TokenAxis pooled_axis(const TokenAxis& axis, std::int64_t cells, std::int64_t n) {
  TokenAxis made = axis;
  made.labels.clear();
  if (made.tokens == 0) made.tokens = cells * axis.per_cell;
  made.per_cell *= n;
  return made;
}

}  // namespace

void check(const HeatMap& map) {
  check_grid(map.values, kMostCells);
  check_axis("across", map.across, map.values.cols);
  check_axis("down", map.down, map.values.rows);
}

Drawing drawing_of(const HeatMap& map, const Style& style) {
  const Ink& ink = ink_of(style.theme);
  const Layout at = layout_of(map, style);
  const Legend legend({&map.values}, map.colours, map.mark, style);
  const double width = at.cell_width * static_cast<double>(map.values.cols),
               height = at.cell_height * static_cast<double>(map.values.rows);
  const double before = at.beside + 18, over = at.above + 18;
  // Beyond the right end: half a number.
  const Sheet sheet(map.captions, before + std::max(width + (at.across.empty() ? 16 : 0), legend.width()),
                    over + height + 14 + legend.height(), style);
  const Box box{std::round(sheet.left() + before), std::round(sheet.top() + over), width, height};
  return sheet.drawing([=, &ink, map = map](Pen& pen) {
    CellPainter(map, at, box, ink).cells(pen);
    pen.frame(box, {.width = 0.75}, {ink.quiet});
    draw_across(pen, map, at, box, ink, style.language);
    draw_down(pen, map, at, box, ink, style.language);
    legend.draw(pen, box.left, box.bottom() + 14);
  });
}

HeatMap pooled(const HeatMap& map, std::int64_t most_cells, Pooling pooling) {
  // What is pooled may be larger than what is drawn.
  check_grid(map.values, INT32_MAX);
  if (most_cells < 1) throw InvalidArgument(fmt::format("pooled: at most {} cells, expected 1 or more", most_cells));
  const Grid& g = map.values;
  const std::int64_t n = (std::max(g.rows, g.cols) + most_cells - 1) / most_cells;
  if (n == 1) return map;
  HeatMap made{.captions = map.captions,
               .values = grid_of((g.rows + n - 1) / n, (g.cols + n - 1) / n, kMasked),
               .across = pooled_axis(map.across, g.cols, n),
               .down = pooled_axis(map.down, g.rows, n),
               .colours = map.colours,
               .mark = map.mark,
               .numbers = map.numbers};
  for (std::int64_t row = 0; row < made.values.rows; ++row)
    for (std::int64_t col = 0; col < made.values.cols; ++col)
      made.values.at(row, col) = pooled_cell(g, row, col, n, pooling);
  return made;
}

HeatMap by_distance(const HeatMap& map) {
  check(map);
  if (map.across.per_cell != map.down.per_cell)
    throw InvalidArgument(fmt::format("by_distance: {} tokens a cell across and {} down, expected the same",
                                      map.across.per_cell, map.down.per_cell));
  const Grid& g = map.values;
  const std::int64_t cell = map.down.per_cell, start = (map.down.first - map.across.first) / cell;
  // Distances of what is seen, in cells.
  std::int64_t least = INT64_MAX, most = INT64_MIN;
  for (std::int64_t row = 0; row < g.rows; ++row)
    for (std::int64_t col = 0; col < g.cols; ++col)
      if (!std::isnan(g.at(row, col))) {
        least = std::min(least, start + row - col);
        most = std::max(most, start + row - col);
      }
  if (least > most) least = most = 0;
  HeatMap sheared = map;
  sheared.values = grid_of(g.rows, most - least + 1, kMasked);
  check_grid(sheared.values, 2 * kMostCells);
  for (std::int64_t row = 0; row < g.rows; ++row)
    for (std::int64_t col = 0; col < g.cols; ++col)
      if (!std::isnan(g.at(row, col))) sheared.values.at(row, start + row - col - least) = g.at(row, col);
  sheared.across = {.name = kHowFarBack, .first = least * cell, .per_cell = cell};
  return sheared;
}

}  // namespace attend::draw
