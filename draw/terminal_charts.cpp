// Curves and bars drawn with characters.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/utf8.hpp"
#include "draw/characters.hpp"
#include "draw/columns.hpp"
#include "draw/labels.hpp"

namespace attend::draw {
namespace {

constexpr int kLines = 14;                         // of a panel
constexpr std::string_view kMarks = "*o+x#@%&=~";  // of the series, without colours

// Dots in braille, two across and four down in a character; without colours a mark for each character.
class DotCanvas {
 public:
  DotCanvas(int columns, int lines)
      : columns_(columns), lines_(lines), cells_(static_cast<std::size_t>(columns * lines)) {}

  // x and y from 0 to 1, y upward.
  void line(double x0, double y0, double x1, double y1, int series) {
    const double width = 2 * columns_ - 1, height = 4 * lines_ - 1;
    const int steps = 1 + static_cast<int>(std::max(std::abs(x1 - x0) * width, std::abs(y1 - y0) * height));
    for (int n = 0; n <= steps; ++n) {
      const double t = static_cast<double>(n) / steps;
      set(static_cast<int>(std::lround((x0 + t * (x1 - x0)) * width)),
          static_cast<int>(std::lround((1 - y0 - t * (y1 - y0)) * height)), series);
    }
  }

  std::string row(int line, const Screen& screen) const {
    std::string out;
    for (int column = 0; column < columns_; ++column) {
      const Cell& cell = cells_[place(line, column)];
      if (cell.dots == 0) {
        out += ' ';
      } else if (plain(screen)) {
        out += kMarks[static_cast<std::size_t>(cell.series) % kMarks.size()];
      } else {
        std::string braille;
        append_utf8(braille, 0x2800 + cell.dots);
        out += coloured(screen, line_style(static_cast<std::size_t>(cell.series) + 1, ink_of(Theme::dark)).colour,
                        braille);
      }
    }
    while (out.ends_with(' ')) out.pop_back();
    return out;
  }

 private:
  struct Cell {
    char32_t dots = 0;
    int series = 0;
  };
  std::size_t place(int line, int column) const {
    return static_cast<std::size_t>(line) * static_cast<std::size_t>(columns_) + static_cast<std::size_t>(column);
  }
  void set(int x, int y, int series) {
    static constexpr char32_t kBits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    Cell& cell = cells_[place(y / 4, x / 2)];
    cell.dots |= kBits[y % 4][x % 2];
    cell.series = series;
  }
  int columns_, lines_;
  std::vector<Cell> cells_;
};

struct Extent {
  double low = std::numeric_limits<double>::infinity(), high = -std::numeric_limits<double>::infinity();
  void take(double v) { low = std::min(low, v), high = std::max(high, v); }
};

bool can_show(const Panel& panel, double x, double y) {
  return std::isfinite(x) && std::isfinite(y) && (panel.across.base <= 0 || x > 0) && (panel.up.base <= 0 || y > 0);
}

// The numbers under the curves, each centred below its place where there is room.
std::string across_line(const Ticks& ticks, const ValueAxis& axis, int margin, int width) {
  std::string line(static_cast<std::size_t>(margin), ' ');
  for (const double tick : ticks.values) {
    const std::string label = tick_label(axis, tick);
    const int middle = margin + static_cast<int>(std::lround(ticks.part(tick) * (width - 1)));
    const int at = std::max(middle - columns_of(label) / 2, margin), used = columns_of(line);
    if ((used > margin && at <= used) || at + columns_of(label) > margin + width + 2) continue;
    line += std::string(static_cast<std::size_t>(at - columns_of(line)), ' ') + label;
  }
  return line;
}

std::string panel_text(const Panel& panel, const Screen& screen) {
  Extent xs, ys;
  for (const Series& series : panel.series)
    for (const auto& [x, y] : series.points)
      if (can_show(panel, x, y)) xs.take(x), ys.take(y);
  std::string out = panel.title.empty() ? "" : emphasised(screen, printable(panel.title));
  if (!panel.up.name.empty()) out += (out.empty() ? "" : "  ") + printable(panel.up.name);
  if (!out.empty()) out += "\n";
  if (xs.low > xs.high) return out;
  const Ticks across = ticks_of(xs.low, xs.high, panel.across.base, false);
  const Ticks up = ticks_of(ys.low, ys.high, panel.up.base, true);
  std::array<std::string, kLines> labels;
  for (const double tick : up.values)
    labels[static_cast<std::size_t>(std::lround((1 - up.part(tick)) * (kLines - 1)))] = tick_label(panel.up, tick);
  const int margin = widest({labels.begin(), labels.end()}) + 2;
  const int width = std::clamp(screen.columns - margin - 2, 20, 100);
  DotCanvas canvas(width, kLines);
  for (std::size_t s = 0; s < panel.series.size(); ++s) {
    const std::pair<double, double>* before = nullptr;
    for (const auto& point : panel.series[s].points) {
      if (!can_show(panel, point.first, point.second)) continue;
      const auto& from = before == nullptr ? point : *before;
      canvas.line(across.part(from.first), up.part(from.second), across.part(point.first), up.part(point.second),
                  static_cast<int>(s));
      before = &point;
    }
  }
  for (int line = 0; line < kLines; ++line) {
    out += right_aligned(labels[static_cast<std::size_t>(line)], margin - 2) + (plain(screen) ? " |" : " │") +
           canvas.row(line, screen) + "\n";
  }
  out += across_line(across, panel.across, margin, width) + "\n";
  if (!panel.across.name.empty())
    out +=
        std::string(static_cast<std::size_t>(margin + std::max(0, (width - columns_of(panel.across.name)) / 2)), ' ') +
        printable(panel.across.name) + "\n";
  for (std::size_t s = 0; s < panel.series.size(); ++s) {
    if (panel.series[s].points.empty()) continue;
    const std::string mark = plain(screen) ? std::string(2, kMarks[s % kMarks.size()]) : "━━";
    out += std::string(static_cast<std::size_t>(margin), ' ') +
           coloured(screen, line_style(s + 1, ink_of(Theme::dark)).colour, mark) + " " +
           printable(panel.series[s].name) + "\n";
  }
  return out;
}

std::string kind_name(const Bars::Kind& kind) {
  return printable(kind.panel.empty() || kind.name.empty() ? kind.panel + kind.name : kind.panel + ", " + kind.name);
}

// So many eighths of columns.
std::string bar_text(double columns, const Screen& screen) {
  static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  if (plain(screen)) return std::string(static_cast<std::size_t>(std::lround(columns)), '#');
  const auto eighths = static_cast<std::size_t>(std::lround(8 * columns));
  std::string bar;
  for (std::size_t n = 0; n < eighths / 8; ++n) bar += "█";
  return bar + kEighths[eighths % 8];
}

}  // namespace

std::string in_characters(const Chart& chart, const Screen& screen) {
  std::string out;
  for (const Panel& panel : chart.panels) out += (out.empty() ? "" : "\n") + panel_text(panel, screen);
  return out;
}

std::string in_characters(const Bars& bars, const Screen& screen) {
  const std::vector<std::string> labels = screen_labels(bars.labels, 24, screen);
  const auto place = [&](double value) { return bars.across.base > 0 ? std::log(value) : value; };
  const double origin = place(bars.origin);
  double low = origin, high = origin;
  int kinds = 0;
  for (const Bars::Kind& kind : bars.kinds) {
    kinds = std::max(kinds, columns_of(kind_name(kind)));
    for (const double value : kind.values)
      if (std::isfinite(value) && (bars.across.base <= 0 || value > 0))
        low = std::min(low, place(value)), high = std::max(high, place(value));
  }
  const int margin = widest(labels) + 1 + (kinds > 0 ? kinds + 1 : 0),
            room = std::clamp(screen.columns - margin - 12, 10, 60);
  const double unit = high > low ? room / (high - low) : 0;
  const auto before = static_cast<int>(std::ceil((origin - low) * unit - 1e-9));  // columns left of where bars begin
  std::string out;
  for (std::size_t n = 0; n < labels.size(); ++n)
    for (std::size_t k = 0; k < bars.kinds.size(); ++k) {
      const double value = bars.kinds[k].values[n];
      if (!std::isfinite(value) || (bars.across.base > 0 && value <= 0)) continue;
      const Rgb colour = k == 0   ? ink_of(Theme::dark).first
                         : k == 1 ? ink_of(Theme::dark).second
                                  : line_style(k + 1, ink_of(Theme::dark)).colour;
      out += right_aligned(k == 0 ? labels[n] : "", widest(labels)) + ' ';
      if (kinds > 0) out += padded(kind_name(bars.kinds[k]), kinds) + ' ';
      const double columns = (place(value) - origin) * unit;
      const int whole = static_cast<int>(std::lround(-columns));
      // Bars to the left have no eighths: characters fill from the left.
      const std::string bar = columns >= 0 ? bar_text(columns, screen) : bar_text(whole, screen);
      out += std::string(static_cast<std::size_t>(columns >= 0 ? before : std::max(0, before - whole)), ' ');
      out += coloured(screen, colour, bar);
      out += ' ' +
             (bars.label          ? bars.label(value)
              : bars.across.label ? bars.across.label(value)
                                  : short_number(value)) +
             "\n";
    }
  if (!bars.across.name.empty())
    out += std::string(static_cast<std::size_t>(margin), ' ') + printable(bars.across.name) + "\n";
  return out;
}

}  // namespace attend::draw
