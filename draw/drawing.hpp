// What all pictures share: colours of the theme, words of the language, heading, legend, axes of numbers.
#pragma once

#include <string>
#include <vector>

#include "draw/pen.hpp"
#include "draw/picture.hpp"

namespace attend::draw {

inline constexpr double kMargin = 20;  // around a picture
inline constexpr Font kTitleFont{16, true}, kNameFont{12}, kSmallFont{11}, kLegendFont{10};

struct Ink {
  Rgb paper, text, quiet, grid, masked, evicted, warning;
  Rgb first, second;  // of two kinds of bars, and of signs: blue, orange
  bool dark;
};
const Ink& ink_of(Theme theme);

// The words that a picture says by itself.
struct Words {
  const char *masked, *evicted, *or_more, *scaling[3], *darker, *less_than, *kv_head, *layer, *head;
};
const Words& words_of(Language language);

// The names that axes and legends have by default, in the language; other texts as they are.
inline constexpr const char* kHowFarBack = "how far back: query - key";
std::string translated(const std::string& text, Language language);

// Line colours that colour-blind eyes tell apart (Okabe and Ito), then the same dashed, then dotted.
struct LineStyle {
  Rgb colour;
  Stroke stroke;
};
LineStyle line_style(std::size_t index, const Ink& ink, double width = 2);

// Paper, title, lines and warning: a picture draws itself between them.
class Sheet {
 public:
  // For contents of this size. The sheet is wider where the title needs it.
  Sheet(const Captions& captions, double width, double height, const Style& style);
  double left() const { return kMargin; }
  double top() const { return top_; }
  Drawing drawing(std::function<void(Pen&)> contents) const;

 private:
  std::vector<std::string> title_, lines_, warning_;
  const Ink& ink_;
  double width_, height_, top_;
};

// A bar of colours with numbers, its unit, and what else a cell can be. Dots: their sizes.
class Legend {
 public:
  Legend(const std::vector<const Grid*>& grids, const ColourScale& scale, Mark mark, const Style& style);
  double width() const { return width_; }
  double height() const { return 48; }
  void draw(Pen& pen, double left, double top) const;

 private:
  void draw_bar(Pen& pen, double left, double top) const;
  void draw_dots(Pen& pen, double left, double top) const;
  double dot_room() const;
  std::string dot_label(double share) const;
  ColourScale scale_;
  Mark mark_;
  const Ink& ink_;
  std::string unit_;
  const char* more_;                                 // behind the last number, where values exceed it
  std::vector<std::pair<std::string, Rgb>> others_;  // masked, evicted
  double scale_width_ = 0, width_ = 0;
};

// The scale with its highest value decided.
ColourScale decided(const ColourScale& scale, const std::vector<const Grid*>& grids);
Rgb cell_colour(double value, const ColourScale& scale, const Ink& ink);

// The first multiple of the step that is not before.
constexpr std::int64_t first_multiple(std::int64_t from, std::int64_t step) {
  return from + ((-from) % step + step) % step;
}

// Dark on bright, bright on dark.
Rgb readable_on(const Rgb& behind);

// Three digits at most: 0.012, 12.3, 4.5e-06.
std::string short_number(double value);

// One direction of a chart: where a value lies between both ends, and which values are marked.
struct Ticks {
  double low = 0, high = 1, base = 0;  // of a logarithmic axis low and high are powers of the base
  std::vector<double> values{};
  double part(double value) const;
  bool holds(double value) const;  // it can be drawn
};
// `whole`: a logarithmic axis begins and ends at a power. `include` is inside too.
Ticks ticks_of(double least, double most, double base, bool whole);
std::string tick_label(const ValueAxis& axis, double value);

Drawing drawing_of(const HeatMap& map, const Style& style);
Drawing drawing_of(const TokenLines& lines, const Style& style);
Drawing drawing_of(const HeadSheet& sheet, const Style& style);
Drawing drawing_of(const Chart& chart, const Style& style);
Drawing drawing_of(const Bars& bars, const Style& style);

// Throw InvalidArgument where sizes do not fit together: before a picture or a drawing with characters is made.
void check(const HeatMap& map);
void check(const TokenLines& lines);
void check(const HeadSheet& sheet);
void check(const Chart& chart);
void check(const Bars& bars);

}  // namespace attend::draw
