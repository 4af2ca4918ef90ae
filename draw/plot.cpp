// A head's map as a picture.
#include "draw/plot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "draw/canvas.hpp"
#include "draw/colours.hpp"
#include "draw/font.hpp"

namespace attend::draw {
namespace {

constexpr int kRight = 40, kBottom = 40;
constexpr int kSide = 1024;  // pixels of the map, nearly
constexpr int kWordDots = 2;

// Where the map begins, and the pixels of a cell.
struct Frame {
  int left = 112, top = 96, pixels = 1;
};

// Words take the room they need.
Frame frame_of(const HeadMap& map, const Captions& captions) {
  Frame frame;
  frame.pixels = std::max(1, kSide / static_cast<int>(map.cells));
  for (const std::string& word : captions.words) {
    frame.left = std::max(frame.left, kWordDots * text_width(word) + 76);
    frame.top = std::max(frame.top, kWordDots * text_width(word) + 76);
  }
  return frame;
}

void draw_cells(Canvas& canvas, const HeadMap& map, const Frame& frame, double brightest) {
  const int pixels = frame.pixels;
  for (std::int64_t row = 0; row < map.cells; ++row) {
    for (std::int64_t col = 0; col < map.cells; ++col) {
      const double share = map.share(row, col);
      if (std::isnan(share)) continue;
      canvas.fill(frame.left + static_cast<int>(col) * pixels, frame.top + static_cast<int>(row) * pixels, pixels,
                  pixels, viridis(brightness(share, brightest)));
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

void draw_ticks(Canvas& canvas, const HeadMap& map, const Frame& f) {
  for (const std::int64_t token : ticks(map.length)) {
    const int at = static_cast<int>(std::lround(static_cast<double>(token) / static_cast<double>(map.cell) * f.pixels));
    canvas.fill(f.left + at - 2, f.top - 10, 2, 8, kInk);
    canvas.text(f.left + at - 1, f.top - 30, 0.5, 2, kInk, std::to_string(token));
    canvas.fill(f.left - 10, f.top + at - 2, 8, 2, kInk);
    canvas.text(f.left - 16, f.top + at - 8, 1, 2, kInk, std::to_string(token));
  }
}

// Where cells are smaller than the letters, some words are left out.
void draw_word_labels(Canvas& canvas, const std::vector<std::string>& words, const Frame& f) {
  constexpr int kHeight = kWordDots * 9;
  const int step = (kHeight + f.pixels) / f.pixels;
  for (int n = 0; n < static_cast<int>(words.size()); n += step) {
    const std::string& word = words[static_cast<std::size_t>(n)];
    const int middle = n * f.pixels + f.pixels / 2, width = kWordDots * text_width(word);
    canvas.upward_text(f.left + middle - kHeight / 2 + 2, f.top - 12 - width / 2, kWordDots, kInk, word);
    canvas.text(f.left - 12, f.top + middle - kHeight / 2 + 2, 1, kWordDots, kInk, word);
  }
}

void draw_axes(Canvas& canvas, const HeadMap& map, const Frame& f, const std::vector<std::string>& words) {
  const int side = static_cast<int>(map.cells) * f.pixels;
  canvas.fill(f.left - 2, f.top - 2, side + 2, 2, kInk);
  canvas.fill(f.left - 2, f.top - 2, 2, side + 2, kInk);
  canvas.text(f.left + side / 2, 18, 0.5, 3, kInk, "keys");
  canvas.upward_text(14, f.top + side / 2, 3, kInk, "queries");
  if (words.empty())
    draw_ticks(canvas, map, f);
  else
    draw_word_labels(canvas, words, f);
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

RgbImage plot(const HeadMap& map, const Captions& captions) {
  const Frame frame = frame_of(map, captions);
  const int side = static_cast<int>(map.cells) * frame.pixels;
  const double brightest = map.brightest();
  Canvas canvas(frame.left + side + kRight, frame.top + side + kBottom);
  draw_cells(canvas, map, frame, brightest);
  draw_axes(canvas, map, frame, captions.words);

  const int right = frame.left + side;
  int y = frame.top + 28;
  canvas.text(right, y, 1, 4, kInk, captions.title);
  y += 52;
  for (const std::string& line : captions.lines) {
    canvas.text(right, y, 1, 2, kFaint, line);
    y += 28;
  }
  draw_legend(canvas, right, y + 12, brightest);
  return canvas.take();
}

}  // namespace attend::draw
