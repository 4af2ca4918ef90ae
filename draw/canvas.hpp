// A picture to draw on: rectangles, lines and text.
#pragma once

#include <string>

#include "draw/colours.hpp"
#include "draw/png.hpp"

namespace attend::draw {

inline constexpr Rgb kPaper = {255, 255, 255};
inline constexpr Rgb kInk = {38, 38, 44};
inline constexpr Rgb kFaint = {128, 128, 138};

class Canvas {
 public:
  Canvas(int width, int height);

  void fill(int left, int top, int width, int height, const Rgb& colour);
  // Smooth at its edges; width in pixels.
  void line(double x0, double y0, double x1, double y1, double width, const Rgb& colour);
  // `anchor` says which part of the text stands at x: 0 its left end, 0.5 its middle, 1 its right end. `size` is the
  // side of a dot.
  void text(int x, int y, double anchor, int size, const Rgb& colour, const std::string& text);
  // Read from bottom to top, its middle at y.
  void upward_text(int x, int y, int size, const Rgb& colour, const std::string& text);

  RgbImage take() { return std::move(image_); }

 private:
  void blend(int x, int y, double share, const Rgb& colour);
  RgbImage image_;
};

}  // namespace attend::draw
