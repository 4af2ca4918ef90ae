// All heads of a model: layers down, heads across, KV heads as brackets.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "attend/error.hpp"
#include "draw/drawing.hpp"

namespace attend::draw {
namespace {

constexpr Font kBadgeFont{8.5};
constexpr std::int64_t kMostHeads = 256, kMostLayers = 512, kMostSheetCells = 8192, kMostMapCells = 256;

struct Layout {
  double width = 0, height = 0, gap = 6, badge = 0, group_gap = 0;
  std::int64_t heads = 0, layers = 0, group = 1;
  double before = 0, over = 0;

  double left(std::int64_t head) const {
    const std::int64_t groups = head / group;
    return before + static_cast<double>(head) * (width + gap) + static_cast<double>(groups) * group_gap;
  }
  double top(std::int64_t layer) const { return over + static_cast<double>(layer) * (height + badge + gap); }
};

std::vector<const Grid*> maps_of(const HeadSheet& sheet) {
  std::vector<const Grid*> maps;
  for (const HeadSheet::Cell& cell : sheet.cells) maps.push_back(&cell.map);
  return maps;
}

std::string layer_name(const HeadSheet& sheet, std::int64_t layer) {
  return sheet.layer_names.empty() ? std::to_string(layer) : sheet.layer_names[static_cast<std::size_t>(layer)];
}

Layout layout_of(const HeadSheet& sheet) {
  Layout at;
  at.heads = sheet.heads;
  at.layers = std::ssize(sheet.cells) / sheet.heads;
  at.group = sheet.kv_heads > 0 ? sheet.heads / sheet.kv_heads : 1;
  at.group_gap = at.group > 1 ? 8 : 0;
  const bool numbers =
      std::all_of(sheet.cells.begin(), sheet.cells.end(), [](const auto& c) { return c.map.values.size() <= 1; });
  const bool badges =
      std::any_of(sheet.cells.begin(), sheet.cells.end(), [](const auto& c) { return !c.badge.empty(); });
  double badge = 0;
  for (const HeadSheet::Cell& cell : sheet.cells) badge = std::max(badge, text_width(cell.badge, kBadgeFont));
  const double side = std::clamp(badge, 64.0, 84.0);
  at.width = numbers && !badges ? 38 : side;
  at.height = numbers ? 24 : side;
  at.badge = badges ? 13 : 0;
  at.over = at.group > 1 ? 52 : 36;
  for (std::int64_t layer = 0; layer < at.layers; ++layer)
    at.before = std::max(at.before, text_width(layer_name(sheet, layer), kLegendFont));
  at.before = std::min(at.before, 120.0) + 28;
  return at;
}

void draw_head_numbers(Pen& pen, const Layout& at, double x0, double y0, const Ink& ink, const Words& words) {
  pen.text({x0 + (at.left(0) + at.left(at.heads - 1) + at.width) / 2, y0 + 6, Anchor::middle}, kNameFont, {ink.quiet},
           words.head);
  for (std::int64_t head = 0; head < at.heads; ++head)
    pen.text({x0 + at.left(head) + at.width / 2, y0 + at.over - 10, Anchor::middle}, kLegendFont, {ink.text},
             std::to_string(head));
  if (at.group <= 1) return;
  for (std::int64_t first = 0; first < at.heads; first += at.group) {
    const double l = x0 + at.left(first) + 1, r = x0 + at.left(first + at.group - 1) + at.width - 1, y = y0 + 32;
    pen.line({{l, y + 4}, {l, y}, {r, y}, {r, y + 4}}, {}, {kKeyColour});
    pen.text({(l + r) / 2, y - 8, Anchor::middle, false, r - l}, kLegendFont, {kKeyColour},
             fmt::format("{} {}", words.kv_head, first / at.group));
  }
}

void draw_cell(Pen& pen, const HeadSheet::Cell& cell, const Box& box, const ColourScale& scale, const Ink& ink) {
  if (cell.map.empty()) {
    pen.line({{box.left, box.bottom()}, {box.right(), box.top}}, {.width = 0.75}, {ink.grid});
  } else {
    std::vector<Rgb> pixels;
    pixels.reserve(cell.map.values.size());
    for (const double value : cell.map.values) pixels.push_back(cell_colour(value, scale, ink));
    pen.image(box, cell.map.cols, cell.map.rows, pixels);
    if (cell.map.values.size() == 1 && std::isfinite(cell.map.values[0])) {
      pen.text({box.middle(), box.centre(), Anchor::middle, false, box.width - 2}, kLegendFont,
               {readable_on(pixels[0])}, short_number(cell.map.values[0]));
    }
  }
  pen.frame(box, {.width = 0.5}, {ink.quiet});
  pen.text({box.middle(), box.bottom() + 7, Anchor::middle, false, box.width + 4}, kBadgeFont, {ink.quiet}, cell.badge);
}

}  // namespace

void check(const HeadSheet& sheet) {
  const std::int64_t cells = std::ssize(sheet.cells), layers = sheet.heads > 0 ? cells / sheet.heads : 0;
  if (sheet.heads < 1 || sheet.heads > kMostHeads || layers < 1 || layers > kMostLayers || cells > kMostSheetCells ||
      cells != layers * sheet.heads)
    throw InvalidArgument(fmt::format(
        "picture: a sheet of {} cells with {} heads a layer, expected whole layers, at most {} heads and {} cells",
        cells, sheet.heads, kMostHeads, kMostSheetCells));
  if (sheet.kv_heads < 0 || (sheet.kv_heads > 0 && sheet.heads % sheet.kv_heads != 0))
    throw InvalidArgument(fmt::format("picture: {} KV heads, expected a divisor of {}", sheet.kv_heads, sheet.heads));
  if (!sheet.layer_names.empty() && std::ssize(sheet.layer_names) != layers)
    throw InvalidArgument(fmt::format("picture: {} names for {} layers", sheet.layer_names.size(), layers));
  for (const HeadSheet::Cell& cell : sheet.cells)
    if (!cell.map.empty()) check_grid(cell.map, kMostMapCells);
}

Drawing drawing_of(const HeadSheet& heads, const Style& style) {
  const Ink& ink = ink_of(style.theme);
  const Words& words = words_of(style.language);
  const Layout at = layout_of(heads);
  const std::vector<const Grid*> maps = maps_of(heads);
  const ColourScale scale = decided(heads.colours, maps);
  const Legend legend(maps, scale, Mark::cell, style);
  const double width = at.left(at.heads - 1) + at.width, height = at.top(at.layers);
  const Sheet sheet(heads.captions, std::max(width, at.before + legend.width()), height + 10 + legend.height(), style);
  return sheet.drawing([=, &ink, &words, heads = heads](Pen& pen) {
    const double x0 = sheet.left(), y0 = sheet.top();
    draw_head_numbers(pen, at, x0, y0, ink, words);
    pen.text({x0 + 6, y0 + (at.over + height) / 2, Anchor::middle, true}, kNameFont, {ink.quiet}, words.layer);
    for (std::int64_t layer = 0; layer < at.layers; ++layer) {
      const double y = y0 + at.top(layer);
      pen.text({x0 + at.before - 8, y + at.height / 2, Anchor::end, false, 120}, kLegendFont, {ink.text},
               layer_name(heads, layer));
      for (std::int64_t head = 0; head < at.heads; ++head)
        draw_cell(pen, heads.cells[static_cast<std::size_t>(layer * at.heads + head)],
                  {x0 + at.left(head), y, at.width, at.height}, scale, ink);
    }
    legend.draw(pen, x0 + at.before, y0 + height + 10);
  });
}

}  // namespace attend::draw
