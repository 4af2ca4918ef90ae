// Lines against length or steps, with their names where they end.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "attend/error.hpp"
#include "draw/drawing.hpp"

namespace attend::draw {
namespace {

constexpr double kWidth = 520, kHeight = 330, kLabelStep = 17, kLongestName = 420;
constexpr std::size_t kMostPoints = 200000;

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -std::numeric_limits<double>::infinity();
  void take(double v) {
    low = std::min(low, v);
    high = std::max(high, v);
  }
  bool empty() const { return low > high; }
};

// A panel whose points can be drawn, and its axes.
struct Prepared {
  const Panel* panel = nullptr;
  std::vector<Points> lines{};
  Ticks across{}, up{};
  bool empty = false;
};

Prepared prepare(const Panel& panel) {
  Prepared made{.panel = &panel};
  Range xs, ys;
  const auto can_show = [](double value, double base) { return std::isfinite(value) && (base <= 0 || value > 0); };
  for (const Series& series : panel.series) {
    Points& points = made.lines.emplace_back();
    for (const auto& [x, y] : series.points)
      if (can_show(x, panel.across.base) && can_show(y, panel.up.base)) {
        points.emplace_back(x, y);
        xs.take(x), ys.take(y);
      }
  }
  made.empty = xs.empty();
  if (made.empty) return made;
  made.across = ticks_of(xs.low, xs.high, panel.across.base, false);
  made.up = ticks_of(ys.low, ys.high, panel.up.base, true);
  return made;
}

// The names at the right, each as near to the end of its line as the others let it.
std::vector<double> label_places(std::vector<std::pair<double, std::size_t>> wanted, double top, double bottom,
                                 std::size_t count) {
  std::sort(wanted.begin(), wanted.end());
  std::vector<double> places(count);
  double next = top;
  for (std::size_t n = 0; n < wanted.size(); ++n) {
    const double last = bottom - kLabelStep * static_cast<double>(wanted.size() - 1 - n);  // room for those below
    const double at = std::max(next, std::min(wanted[n].first, last));
    places[wanted[n].second] = at;
    next = at + kLabelStep;
  }
  return places;
}

// Room for all names: with many lines a panel is higher.
double panel_height(const Prepared& made) {
  const auto names = std::count_if(made.lines.begin(), made.lines.end(), [](const Points& p) { return !p.empty(); });
  return std::max(kHeight, kLabelStep * static_cast<double>(names - 1));
}

void draw_axes(Pen& pen, const Prepared& made, const Box& box, const Ink& ink) {
  const Panel& panel = *made.panel;
  for (const double tick : made.up.values) {
    const double y = box.top + box.height * (1 - made.up.part(tick));
    pen.line({{box.left, y}, {box.right(), y}}, {}, {ink.grid});
    pen.text({box.left - 8, y, Anchor::end}, kSmallFont, {ink.quiet}, tick_label(panel.up, tick));
  }
  double written = -std::numeric_limits<double>::infinity();
  for (const double tick : made.across.values) {
    const double x = box.left + box.width * made.across.part(tick);
    const std::string label = tick_label(panel.across, tick);
    const double half = text_width(label, kSmallFont) / 2;
    pen.line({{x, box.bottom()}, {x, box.bottom() + 4}}, {}, {ink.quiet});
    if (x - half < written + 6) continue;  // no room beside the one before
    pen.text({x, box.bottom() + 15, Anchor::middle}, kSmallFont, {ink.quiet}, label);
    written = x + half;
  }
  pen.text({box.middle(), box.bottom() + 34, Anchor::middle}, kSmallFont, {ink.quiet}, panel.across.name);
}

void draw_panel(Pen& pen, const Prepared& made, const Box& box, const Ink& ink) {
  const Panel& panel = *made.panel;
  pen.text({box.left, box.top - 20}, {13, true}, {ink.text}, panel.title);
  pen.text({box.left + text_width(panel.title, {13, true}) + (panel.title.empty() ? 0 : 12), box.top - 20}, kSmallFont,
           {ink.quiet}, panel.up.name);
  if (made.empty) return;
  draw_axes(pen, made, box, ink);
  std::vector<std::pair<double, std::size_t>> ends;
  std::vector<double> right(made.lines.size());
  for (std::size_t n = 0; n < made.lines.size(); ++n) {
    if (made.lines[n].empty()) continue;
    Points points;
    for (const auto& [x, y] : made.lines[n])
      points.emplace_back(box.left + box.width * made.across.part(x), box.top + box.height * (1 - made.up.part(y)));
    const LineStyle style = line_style(n, ink);
    pen.line(points, style.stroke, {style.colour});
    if (points.size() <= 40)
      for (const auto& [x, y] : points) pen.dot(x, y, points.size() == 1 ? 4 : 2.5, {style.colour});
    right[n] = points.back().first;
    ends.emplace_back(points.back().second, n);
  }
  const std::vector<double> places = label_places(ends, box.top, box.bottom(), made.lines.size());
  for (const auto& [y, n] : ends) {
    const LineStyle style = line_style(n, ink);
    pen.line({{right[n] + 4, y}, {box.right() + 22, places[n]}}, {.width = 0.7}, {ink.quiet, 0.6});
    pen.line({{box.right() + 24, places[n]}, {box.right() + 46, places[n]}}, style.stroke, {style.colour});
    pen.text({box.right() + 52, places[n], Anchor::start, false, kLongestName}, kSmallFont, {ink.text},
             panel.series[n].name);
  }
}

}  // namespace

void check(const Chart& chart) {
  if (chart.panels.empty() || chart.panels.size() > 16)
    throw InvalidArgument(fmt::format("picture: a chart of {} panels, expected 1 to 16", chart.panels.size()));
  std::size_t points = 0;
  for (const Panel& panel : chart.panels) {
    if (panel.series.size() > 200)
      throw InvalidArgument(fmt::format("picture: {} lines in a chart, expected at most 200", panel.series.size()));
    for (const ValueAxis* axis : {&panel.across, &panel.up})
      if (axis->base != 0 && !(axis->base > 1))
        throw InvalidArgument(fmt::format("picture: an axis with base {}, expected 0 or more than 1", axis->base));
    for (const Series& series : panel.series) points += series.points.size();
  }
  if (points > kMostPoints)
    throw InvalidArgument(fmt::format("picture: {} points in a chart, expected at most {}", points, kMostPoints));
}

Drawing drawing_of(const Chart& chart, const Style& style) {
  const Ink& ink = ink_of(style.theme);
  double before = 0, names = 0, height = 0;
  for (const Panel& panel : chart.panels) {
    const Prepared made = prepare(panel);
    for (const double tick : made.up.values)
      if (!made.empty) before = std::max(before, text_width(tick_label(panel.up, tick), kSmallFont));
    for (const Series& series : panel.series)
      if (!series.points.empty()) names = std::max(names, std::min(text_width(series.name, kSmallFont), kLongestName));
    height += panel_height(made) + 92;
  }
  before += 12;
  const Sheet sheet(chart.captions, before + kWidth + 54 + names, height - 14, style);
  return sheet.drawing([=, &ink, chart = chart](Pen& pen) {
    double top = sheet.top() + 30;
    for (const Panel& panel : chart.panels) {
      const Prepared made = prepare(panel);
      draw_panel(pen, made, {sheet.left() + before, top, kWidth, panel_height(made)}, ink);
      top += panel_height(made) + 92;
    }
  });
}

}  // namespace attend::draw
