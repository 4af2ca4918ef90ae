// A picture to draw on.
#include "draw/canvas.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "draw/font.hpp"

namespace attend::draw {

Canvas::Canvas(int width, int height) : image_{width, height, {}} {
  image_.pixels.resize(static_cast<std::size_t>(width) * static_cast<std::size_t>(height) * 3);
  fill(0, 0, width, height, kPaper);
}

void Canvas::fill(int left, int top, int width, int height, const Rgb& colour) {
  for (int y = std::max(0, top); y < std::min(top + height, image_.height); ++y) {
    for (int x = std::max(0, left); x < std::min(left + width, image_.width); ++x) blend(x, y, 1, colour);
  }
}

void Canvas::blend(int x, int y, double share, const Rgb& colour) {
  const auto at =
      (static_cast<std::size_t>(y) * static_cast<std::size_t>(image_.width) + static_cast<std::size_t>(x)) * 3;
  for (std::size_t c = 0; c < 3; ++c) {
    std::uint8_t& pixel = image_.pixels[at + c];
    pixel = static_cast<std::uint8_t>(std::lround(share * colour[c] + (1 - share) * pixel));
  }
}

void Canvas::line(double x0, double y0, double x1, double y1, double width, const Rgb& colour) {
  const double dx = x1 - x0, dy = y1 - y0, square = std::max(1e-9, dx * dx + dy * dy), reach = width / 2 + 1;
  const auto inside = [](double v, int side) { return std::clamp(static_cast<int>(std::floor(v)), 0, side - 1); };
  for (int y = inside(std::min(y0, y1) - reach, image_.height); y <= inside(std::max(y0, y1) + reach, image_.height);
       ++y) {
    for (int x = inside(std::min(x0, x1) - reach, image_.width); x <= inside(std::max(x0, x1) + reach, image_.width);
         ++x) {
      const double along = std::clamp(((x - x0) * dx + (y - y0) * dy) / square, 0.0, 1.0);
      const double away = std::hypot(x - x0 - along * dx, y - y0 - along * dy);
      const double share = std::clamp(width / 2 + 0.5 - away, 0.0, 1.0);
      if (share > 0) blend(x, y, share, colour);
    }
  }
}

void Canvas::text(int x, int y, double anchor, int size, const Rgb& colour, const std::string& text) {
  const int left = x - static_cast<int>(std::lround(anchor * size * text_width(text)));
  for_each_dot(text, [&](int dx, int dy) { fill(left + dx * size, y + dy * size, size, size, colour); });
}

void Canvas::upward_text(int x, int y, int size, const Rgb& colour, const std::string& text) {
  const int bottom = y + size * text_width(text) / 2;
  for_each_dot(text, [&](int dx, int dy) { fill(x + dy * size, bottom - (dx + 1) * size, size, size, colour); });
}

}  // namespace attend::draw
