// Bars across, grouped by label.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "attend/error.hpp"
#include "draw/drawing.hpp"
#include "draw/labels.hpp"

namespace attend::draw {
namespace {

constexpr double kWidth = 420, kBar = 13, kGroupGap = 9, kLongestLabel = 240;
constexpr std::size_t kMostBars = 1000;

Rgb kind_colour(std::size_t kind, const Ink& ink) {
  return kind == 0 ? ink.first : kind == 1 ? ink.second : line_style(kind + 1, ink).colour;
}

std::string value_label(const Bars& bars, double value) {
  return bars.label ? bars.label(value) : bars.across.label ? bars.across.label(value) : short_number(value);
}

Ticks ticks_of_bars(const Bars& bars) {
  double low = bars.origin, high = bars.origin;
  const auto take = [&](double value) {
    if (!std::isfinite(value) || (bars.across.base > 0 && value <= 0)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  };
  for (const Bars::Kind& kind : bars.kinds) {
    for (const double value : kind.values) take(value);
    for (const auto& [least, most] : kind.spread) take(least), take(most);
  }
  if (low == high) high = bars.across.base > 0 ? low * bars.across.base : low + 1;
  return ticks_of(low, high, bars.across.base, false);
}

// Kinds that stand in one panel, and the panels in the order they come.
struct BarPanel {
  std::string name;
  std::vector<std::size_t> kinds;
};
std::vector<BarPanel> panels_of(const Bars& bars) {
  std::vector<BarPanel> panels;
  for (std::size_t k = 0; k < bars.kinds.size(); ++k) {
    const auto same = [&](const BarPanel& panel) { return panel.name == bars.kinds[k].panel; };
    auto panel = std::find_if(panels.begin(), panels.end(), same);
    if (panel == panels.end()) panel = panels.insert(panels.end(), {bars.kinds[k].panel, {}});
    panel->kinds.push_back(k);
  }
  return panels;
}

// One panel: its axis and its bars.
class BarPainter {
 public:
  BarPainter(const Bars& bars, const BarPanel& panel, const Box& box, const Ink& ink)
      : bars_(bars), panel_(panel), box_(box), ink_(ink), ticks_(ticks_of_bars(bars)) {}

  void axis(Pen& pen) const {
    pen.text({box_.middle(), box_.top - 14, Anchor::middle}, {12, true}, {ink_.text}, panel_.name);
    for (const double tick : ticks_.values) {
      pen.line({{x(tick), box_.top}, {x(tick), box_.bottom()}}, {}, {ink_.grid});
      pen.text({x(tick), box_.bottom() + 12, Anchor::middle}, kLegendFont, {ink_.quiet},
               tick_label(bars_.across, tick));
    }
    pen.line({{x(bars_.origin), box_.top}, {x(bars_.origin), box_.bottom()}}, {.width = 1.25}, {ink_.quiet});
    pen.text({box_.middle(), box_.bottom() + 28, Anchor::middle}, kSmallFont, {ink_.quiet}, bars_.across.name);
  }

  void bars(Pen& pen, std::size_t label, double middle) const {
    double y = middle - kBar * static_cast<double>(panel_.kinds.size() - 1) / 2;
    for (std::size_t place = 0; place < panel_.kinds.size(); ++place, y += kBar) bar(pen, place, label, y);
  }

 private:
  void bar(Pen& pen, std::size_t place, std::size_t label, double y) const {
    const Bars::Kind& k = bars_.kinds[panel_.kinds[place]];
    const double value = k.values[label];
    if (!ticks_.holds(value)) return;
    const double from = x(bars_.origin), to = x(value), thick = kBar - 2;
    pen.fill({std::min(from, to), y - thick / 2, std::max(1.0, std::abs(to - from)), thick},
             {kind_colour(place, ink_)});
    const bool leftward = to < from;
    double end = to;
    if (label < k.spread.size() && ticks_.holds(k.spread[label].first) && ticks_.holds(k.spread[label].second)) {
      const double low = x(k.spread[label].first), high = x(k.spread[label].second);
      pen.line({{low, y}, {high, y}}, {.width = 1.25}, {ink_.text});
      for (const double at : {low, high}) pen.line({{at, y - 3}, {at, y + 3}}, {.width = 1.25}, {ink_.text});
      end = leftward ? std::min(end, low) : std::max(end, high);
    }
    pen.text({leftward ? end - 6 : end + 6, y, leftward ? Anchor::end : Anchor::start}, kLegendFont, {ink_.text},
             value_label(bars_, value));
  }
  double x(double value) const { return box_.left + box_.width * ticks_.part(value); }

  const Bars& bars_;
  const BarPanel& panel_;
  const Box& box_;
  const Ink& ink_;
  Ticks ticks_;
};

double widest_label(const Bars& bars) {
  double most = 0;
  for (const std::string& label : token_labels(bars.labels, 40)) most = std::max(most, text_width(label, kSmallFont));
  return std::min(most, kLongestLabel);
}

// Of those that stand behind a bar to the right, or to the left.
double widest_value(const Bars& bars, bool leftward) {
  double most = 0;
  for (const Bars::Kind& kind : bars.kinds)
    for (const double value : kind.values)
      if (std::isfinite(value) && (value < bars.origin) == leftward)
        most = std::max(most, text_width(value_label(bars, value), kLegendFont));
  return most;
}

}  // namespace

void check(const Bars& bars) {
  if (bars.labels.empty() || bars.kinds.empty() ||
      bars.labels.size() > kMostBars / std::max<std::size_t>(1, bars.kinds.size()))
    throw InvalidArgument(fmt::format("picture: {} labels with {} bars each, expected 1 to {} bars", bars.labels.size(),
                                      bars.kinds.size(), kMostBars));
  for (const Bars::Kind& kind : bars.kinds) {
    if (kind.values.size() != bars.labels.size())
      throw InvalidArgument(fmt::format("picture: {} bars for {} labels", kind.values.size(), bars.labels.size()));
    if (!kind.spread.empty() && kind.spread.size() != bars.labels.size())
      throw InvalidArgument(fmt::format("picture: {} spreads for {} labels", kind.spread.size(), bars.labels.size()));
  }
  if (bars.across.base != 0 && !(bars.across.base > 1 && bars.origin > 0))
    throw InvalidArgument(
        fmt::format("picture: a logarithmic axis with base {} from {}, expected a base above 1 and an "
                    "origin above 0",
                    bars.across.base, bars.origin));
}

namespace {

void draw_bar_legend(Pen& pen, const Bars& bars, const std::vector<BarPanel>& panels, double left, double top,
                     const Ink& ink) {
  std::vector<std::string> named;
  for (const BarPanel& panel : panels)
    for (std::size_t place = 0; place < panel.kinds.size(); ++place) {
      const std::string& name = bars.kinds[panel.kinds[place]].name;
      if (name.empty() || std::find(named.begin(), named.end(), name) != named.end()) continue;
      pen.fill({left, top, 11, 11}, {kind_colour(place, ink)});
      pen.text({left + 16, top + 5.5}, kSmallFont, {ink.text}, name);
      left += 32 + text_width(name, kSmallFont);
      named.push_back(name);
    }
}

}  // namespace

Drawing drawing_of(const Bars& bars, const Style& style) {
  const Ink& ink = ink_of(style.theme);
  const std::vector<BarPanel> panels = panels_of(bars);
  std::size_t most = 0;
  for (const BarPanel& panel : panels) most = std::max(most, panel.kinds.size());
  const bool legend = std::any_of(bars.kinds.begin(), bars.kinds.end(), [](const auto& k) { return !k.name.empty(); });
  const double group = static_cast<double>(most) * kBar + kGroupGap;
  const double rightward = widest_value(bars, false);
  double leftward = widest_value(bars, true);
  if (leftward > 0) leftward += 10;
  const double before = widest_label(bars) + 10, width = panels.size() > 1 ? 0.7 * kWidth : kWidth,
               step = leftward + width + rightward + 24;
  const double over = (legend ? 24 : 0) + (panels.size() > 1 || !panels[0].name.empty() ? 26 : 0);
  const double height = group * static_cast<double>(bars.labels.size());
  const Sheet sheet(bars.captions, before + step * static_cast<double>(panels.size()) - 12,
                    over + height + (bars.across.name.empty() ? 20 : 38), style);
  return sheet.drawing([=, &ink, bars = bars](Pen& pen) {
    const double left = sheet.left() + before, top = sheet.top() + over;
    draw_bar_legend(pen, bars, panels, left, sheet.top() + 2, ink);
    const std::vector<std::string> labels = token_labels(bars.labels, 40);
    for (std::size_t p = 0; p < panels.size(); ++p) {
      const Box box{left + leftward + step * static_cast<double>(p), top, width, height};
      const BarPainter painter(bars, panels[p], box, ink);
      painter.axis(pen);
      for (std::size_t n = 0; n < labels.size(); ++n) {
        const double middle = top + (static_cast<double>(n) + 0.5) * group;
        painter.bars(pen, n, middle);
        if (p == 0) pen.text({left - 8, middle, Anchor::end, false, kLongestLabel}, kSmallFont, {ink.text}, labels[n]);
      }
    }
  });
}

}  // namespace attend::draw
