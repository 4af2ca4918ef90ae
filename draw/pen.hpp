// The one pen of all pictures: shapes, images and text, in units of an SVG. Cairo and Pango are behind it, here alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "draw/colours.hpp"

struct _cairo;

namespace attend::draw {

struct Colour {
  Rgb rgb;
  double alpha = 1;
};

struct Box {
  double left = 0, top = 0, width = 0, height = 0;
  double right() const { return left + width; }
  double bottom() const { return top + height; }
  double middle() const { return left + width / 2; }
  double centre() const { return top + height / 2; }
};

struct Font {
  double size = 11;
  bool bold = false;
};

enum class Anchor : std::uint8_t { start, middle, end };

// The point that a text is anchored at, by its end and by the middle of its line.
struct Place {
  double x = 0, y = 0;
  Anchor anchor = Anchor::start;
  bool upward = false;  // read from bottom to top
  double room = 0;      // what is longer ends in an ellipsis; 0: no bound
};

struct Stroke {
  double width = 1;
  double on = 0, off = 0;  // of a dashed line
};

using Points = std::vector<std::pair<double, double>>;

class Pen {
 public:
  // A text that was written, for the layer of text in an SVG.
  struct Written {
    Place place;
    Font font;
    double width;
    std::string text;
  };

  explicit Pen(_cairo* cairo) : cairo_(cairo) {}

  void fill(const Box& box, const Colour& colour);
  void frame(const Box& box, const Stroke& stroke, const Colour& colour);
  void line(const Points& points, const Stroke& stroke, const Colour& colour);
  // From left to right, leaving and arriving level.
  void wave(double x0, double y0, double x1, double y1, double width, const Colour& colour);
  void dot(double x, double y, double radius, const Colour& colour);
  // A pixel a cell, rows from the top, with sharp edges.
  void image(const Box& box, std::int64_t cols, std::int64_t rows, const std::vector<Rgb>& pixels);
  void text(const Place& place, const Font& font, const Colour& colour, const std::string& text);

  const std::vector<Written>& written() const { return written_; }

 private:
  void set(const Colour& colour);
  void set(const Stroke& stroke);
  _cairo* cairo_;
  std::vector<Written> written_;
};

double text_width(const std::string& text, const Font& font);
// Lines at most `width` wide.
std::vector<std::string> wrapped(const std::string& text, const Font& font, double width);
// How many characters of the texts no font here has.
int unknown_characters(const std::vector<std::string>& texts);

// A picture that knows its size and how to draw itself.
struct Drawing {
  double width = 0, height = 0;
  std::function<void(Pen&)> paint;
};

// `pixels` for each unit. All three throw InvalidArgument for a picture too large to hold.
std::vector<std::byte> png_of(const Drawing& drawing, double pixels);
std::vector<std::byte> pdf_of(const Drawing& drawing);
std::string svg_of(const Drawing& drawing, const std::string& title);

}  // namespace attend::draw
