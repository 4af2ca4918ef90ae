// Lines against length: the layout once, drawn by a pen that writes SVG or by one that sets pixels.
#include "draw/chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "draw/canvas.hpp"
#include "draw/font.hpp"

namespace attend::draw {
namespace {

constexpr double kLeft = 90, kWidth = 520, kLabels = 300, kTop = 70, kHeight = 330, kPanel = 430, kNote = 34;
constexpr double kLabelStep = 17;  // between two names at the right
constexpr Rgb kGrid = {225, 228, 233};
constexpr Rgb kWarning = {179, 38, 30};
// Told apart by colour-blind eyes too (Okabe and Ito), then the same again dashed, then dotted.
constexpr Rgb kColours[] = {{0, 0, 0},       {0, 114, 178}, {213, 94, 0},   {0, 158, 115},
                            {204, 121, 167}, {230, 159, 0}, {86, 180, 233}, {140, 86, 75}};
constexpr std::size_t kColourCount = std::size(kColours);

struct Dash {
  double on, off;  // off 0: no gaps
};
constexpr Dash kSolid = {1, 0};
constexpr Dash kDashes[] = {kSolid, {6, 4}, {2, 3}};

struct Style {
  Rgb colour;
  Dash dash;
};
Style style_of(std::size_t index) {
  return {kColours[index % kColourCount], kDashes[index / kColourCount % std::size(kDashes)]};
}

enum class Anchor { start, middle, end };

class SvgPen {
 public:
  SvgPen(double width, double height) {
    svg_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:g} {1:g}\" font-family=\"sans-serif\" "
        "font-size=\"12\">\n<rect width=\"{0:g}\" height=\"{1:g}\" fill=\"#ffffff\"/>\n",
        width, height);
  }
  void line(double x0, double y0, double x1, double y1, double width, const Style& style) {
    svg_ += fmt::format(
        "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" stroke-width=\"{:g}\"{}/>\n", x0,
        y0, x1, y1, hex(style.colour), width,
        style.dash.off > 0 ? fmt::format(" stroke-dasharray=\"{:g} {:g}\"", style.dash.on, style.dash.off) : "");
  }
  void text(double x, double y, Anchor anchor, bool large, const Rgb& colour, const std::string& text) {
    constexpr const char* kAnchors[] = {"start", "middle", "end"};
    svg_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" fill=\"{}\"{}>{}</text>\n", x, y + 4,
                        kAnchors[static_cast<int>(anchor)], hex(colour),
                        large ? " font-size=\"16\" font-weight=\"600\"" : "", escaped(text));
  }
  std::string take() { return std::move(svg_) + "</svg>\n"; }

 private:
  static std::string hex(const Rgb& c) { return fmt::format("#{:02x}{:02x}{:02x}", c[0], c[1], c[2]); }
  static std::string escaped(const std::string& text) {
    std::string safe;
    for (const char c : text) {
      safe += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
    }
    return safe;
  }
  std::string svg_;
};

class PixelPen {
 public:
  PixelPen(double width, double height) : canvas_(scaled(width), scaled(height)) {}
  void line(double x0, double y0, double x1, double y1, double width, const Style& style) {
    const double length = std::hypot(x1 - x0, y1 - y0);
    const bool solid = style.dash.off == 0;
    const double dash = solid ? length : style.dash.on, step = solid ? length : style.dash.on + style.dash.off;
    const int dashes = length > 0 ? static_cast<int>(std::ceil(length / step)) : 0;
    for (int n = 0; n < dashes; ++n) {
      const double from = n * step / length, to = std::min(1.0, (n * step + dash) / length);
      canvas_.line(kScale * (x0 + from * (x1 - x0)), kScale * (y0 + from * (y1 - y0)), kScale * (x0 + to * (x1 - x0)),
                   kScale * (y0 + to * (y1 - y0)), kScale * width, style.colour);
    }
  }
  void text(double x, double y, Anchor anchor, bool large, const Rgb& colour, const std::string& text) {
    const int size = large ? 3 : 2;
    canvas_.text(scaled(x), scaled(y) - size * kCapHeight / 2, 0.5 * static_cast<int>(anchor), size, colour, text);
  }
  RgbImage take() { return canvas_.take(); }

 private:
  static constexpr double kScale = 2;
  static int scaled(double v) { return static_cast<int>(std::lround(kScale * v)); }
  Canvas canvas_;
};

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = 0;
  void take(double v) {
    low = std::min(low, v);
    high = std::max(high, v);
  }
};

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

std::string length_label(double length) {
  return length >= 1024 ? fmt::format("{:g}k", length / 1024) : fmt::format("{:g}", length);
}

// One direction of a panel: where a value lies between both ends, and which values are marked.
struct Axis {
  double low = 0, high = 1, step = 0;  // step: the base of a logarithmic one, or 0; low and high are powers of it then
  std::vector<double> ticks{};

  double part(double value) const {
    return ((step > 0 ? std::log(value) / std::log(step) : value) - low) / (high - low);
  }
};

// `whole`: it begins and ends at a power of the step.
Axis logarithmic_axis(const Range& range, double step, bool whole) {
  Axis axis{std::log(range.low) / std::log(step), std::log(range.high) / std::log(step), step};
  if (whole) axis.low = std::floor(axis.low), axis.high = std::ceil(axis.high);
  axis.high = std::max(axis.low + 1, axis.high);
  for (int power = static_cast<int>(std::ceil(axis.low)); power <= static_cast<int>(axis.high); ++power)
    axis.ticks.push_back(std::pow(step, power));
  return axis;
}

// From 0 or the first round number below, with four to ten marks.
Axis linear_axis(const Range& range) {
  const double span = std::max(range.high - range.low, 1e-9), power = std::pow(10, std::floor(std::log10(span)));
  const double step = span / power < 2 ? power / 5 : span / power < 5 ? power / 2 : power;
  Axis axis{std::floor(range.low / step) * step, std::ceil(range.high / step) * step, 0};
  if (axis.high <= axis.low) axis.high = axis.low + step;
  for (double tick = axis.low; tick <= axis.high + step / 2; tick += step) axis.ticks.push_back(tick);
  return axis;
}

template <class Pen>
void draw_panel(Pen& pen, const Panel& panel, double top) {
  Range xs, ys;
  for (const Series& series : panel.series) {
    for (const auto& [x, y] : series.points) xs.take(x), ys.take(y);
  }
  pen.text(kLeft, top - 18, Anchor::start, true, kInk, panel.title);
  if (ys.high <= 0) return;
  const Axis across = panel.linear ? linear_axis(xs) : logarithmic_axis(xs, 2, false);
  const Axis up = panel.linear ? linear_axis(ys) : logarithmic_axis(ys, panel.step, true);
  const auto place_x = [&](double x) { return kLeft + kWidth * across.part(x); };
  const auto place_y = [&](double y) { return top + kHeight * (1 - up.part(y)); };

  for (const double tick : up.ticks) {
    const double y = place_y(tick);
    pen.line(kLeft, y, kLeft + kWidth, y, 1, {kGrid, kSolid});
    pen.text(kLeft - 8, y, Anchor::end, false, kFaint, panel.label(tick));
  }
  for (const double tick : across.ticks)
    pen.text(place_x(tick), top + kHeight + 16, Anchor::middle, false, kFaint,
             panel.linear ? fmt::format("{:g}", tick) : length_label(tick));
  pen.text(kLeft + kWidth / 2, top + kHeight + 34, Anchor::middle, false, kFaint, panel.across);

  std::vector<std::pair<double, std::size_t>> ends;
  for (std::size_t n = 0; n < panel.series.size(); ++n) {
    const auto& points = panel.series[n].points;
    if (points.empty()) continue;
    for (std::size_t p = 1; p < points.size(); ++p) {
      pen.line(place_x(points[p - 1].first), place_y(points[p - 1].second), place_x(points[p].first),
               place_y(points[p].second), 2, style_of(n));
    }
    ends.emplace_back(place_y(points.back().second), n);
  }
  const std::vector<double> places = label_places(ends, top, top + kHeight, panel.series.size());
  for (const auto& [y, n] : ends) {
    const auto& [end, value] = panel.series[n].points.back();
    pen.line(place_x(end) + 3, y, kLeft + kWidth + 22, places[n], 0.7, {kFaint, kSolid});
    pen.line(kLeft + kWidth + 24, places[n], kLeft + kWidth + 44, places[n], 2, style_of(n));
    pen.text(kLeft + kWidth + 50, places[n], Anchor::start, false, kInk, panel.series[n].name);
  }
}

template <class Pen>
auto draw_chart(const Chart& chart) {
  Pen pen(kLeft + kWidth + kLabels, kTop + kPanel * static_cast<double>(chart.panels.size()) + kNote);
  pen.text(20, 24, Anchor::start, true, kInk, chart.title);
  double top = kTop + 18;
  for (const Panel& panel : chart.panels) {
    draw_panel(pen, panel, top);
    top += kPanel;
  }
  pen.text(20, top - 24, Anchor::start, false, kFaint, chart.note);
  pen.text(20, top - 6, Anchor::start, false, kWarning, chart.warning);
  return pen.take();
}

}  // namespace

std::string to_svg(const Chart& chart) {
  return draw_chart<SvgPen>(chart);
}

RgbImage to_picture(const Chart& chart) {
  return draw_chart<PixelPen>(chart);
}

}  // namespace attend::draw
