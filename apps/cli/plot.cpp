// A head's map as a picture.
#include "plot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "canvas.hpp"
#include "colours.hpp"

namespace attend::cli {
namespace {

constexpr int kLeft = 112, kTop = 96, kRight = 40, kBottom = 40;
constexpr int kSide = 1024;  // pixels of the map, nearly

void draw_cells(Canvas& canvas, const HeadMap& map, int pixels, double brightest) {
  for (std::int64_t row = 0; row < map.cells; ++row) {
    for (std::int64_t col = 0; col < map.cells; ++col) {
      const double share = map.share(row, col);
      if (std::isnan(share)) continue;
      canvas.fill(kLeft + static_cast<int>(col) * pixels, kTop + static_cast<int>(row) * pixels, pixels, pixels,
                  viridis(brightness(share, brightest)));
    }
  }
}

// Multiples of a power of two, eight steps at most, and the end unless it would run into the last of them.
std::vector<std::int64_t> ticks(std::int64_t length) {
  const auto step = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>((length + 7) / 8)));
  std::vector<std::int64_t> tokens;
  for (std::int64_t token = 0; token <= length; token += step) tokens.push_back(token);
  if (2 * (length - tokens.back()) > step) tokens.push_back(length);
  return tokens;
}

void draw_axes(Canvas& canvas, const HeadMap& map, int pixels) {
  const int side = static_cast<int>(map.cells) * pixels;
  canvas.fill(kLeft - 2, kTop - 2, side + 2, 2, kInk);
  canvas.fill(kLeft - 2, kTop - 2, 2, side + 2, kInk);
  canvas.text(kLeft + side / 2, 18, 0.5, 3, kInk, "keys");
  canvas.upward_text(14, kTop + side / 2, 3, kInk, "queries");
  for (const std::int64_t token : ticks(map.length)) {
    const int at = static_cast<int>(std::lround(static_cast<double>(token) / static_cast<double>(map.cell) * pixels));
    canvas.fill(kLeft + at - 2, kTop - 10, 2, 8, kInk);
    canvas.text(kLeft + at - 1, kTop - 30, 0.5, 2, kInk, std::to_string(token));
    canvas.fill(kLeft - 10, kTop + at - 2, 8, 2, kInk);
    canvas.text(kLeft - 16, kTop + at - 8, 1, 2, kInk, std::to_string(token));
  }
}

void draw_legend(Canvas& canvas, int right, int top, double brightest) {
  constexpr int kWidth = 300, kHeight = 18;
  for (int x = 0; x < kWidth; ++x) {
    canvas.fill(right - kWidth + x, top, 1, kHeight, viridis(x / (kWidth - 1.0)));
  }
  // The scale is a square root: the share at a quarter of the bar is a sixteenth of the brightest.
  for (const double part : {0.0, 0.5, 1.0}) {
    const int x = right - kWidth + static_cast<int>(part * (kWidth - 2));
    canvas.fill(x, top + kHeight, 2, 6, kInk);
    const std::string label = fmt::format("{:.2g}{}", part * part * brightest, part == 1 && brightest < 1 ? "+" : "");
    canvas.text(x + 1, top + kHeight + 12, part == 1 ? 1 : 0.5, 2, kInk, label);
  }
}

}  // namespace

io::RgbImage plot(const HeadMap& map, const Captions& captions) {
  const int pixels = std::max(1, kSide / static_cast<int>(map.cells));
  const int side = static_cast<int>(map.cells) * pixels;
  const double brightest = map.brightest();
  Canvas canvas(kLeft + side + kRight, kTop + side + kBottom);
  draw_cells(canvas, map, pixels, brightest);
  draw_axes(canvas, map, pixels);

  const int right = kLeft + side;
  int y = kTop + 28;
  canvas.text(right, y, 1, 4, kInk, captions.title);
  y += 52;
  for (const std::string& line : captions.lines) {
    canvas.text(right, y, 1, 2, kFaint, line);
    y += 28;
  }
  draw_legend(canvas, right, y + 12, brightest);
  return canvas.take();
}

}  // namespace attend::cli
