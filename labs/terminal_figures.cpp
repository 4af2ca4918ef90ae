// Figures of a report drawn with characters.
#include <algorithm>
#include <cmath>
#include <limits>

#include "draw/colours.hpp"
#include "draw/columns.hpp"
#include "labs/pictures.hpp"
#include "labs/terminal.hpp"

namespace attend::labs {
namespace {

std::string cell_colour(draw::Colours colours, double share) {
  const draw::Rgb rgb = draw::colour_at(share, draw::Palette::viridis);
  const char* ink = share > 0.6 ? "\x1b[30m" : "\x1b[97m";
  if (colours == draw::Colours::full) return fmt::format("\x1b[48;2;{};{};{}m{}", rgb[0], rgb[1], rgb[2], ink);
  const auto step = [](int x) { return x < 48 ? 0 : x < 115 ? 1 : (x - 35) / 40; };
  return fmt::format("\x1b[48;5;{}m{}", 16 + 36 * step(rgb[0]) + 6 * step(rgb[1]) + step(rgb[2]), ink);
}

std::string label_of(const std::vector<Text>& labels, std::size_t n, Language language) {
  return labels.empty() ? std::to_string(n) : labels[n].in(language);
}

std::string fitted(const std::string& text, int width) {
  const std::string cut = draw::columns_of(text) <= width ? text : draw::cut_to(text, width);
  return std::string(static_cast<std::size_t>(width - draw::columns_of(cut)), ' ') + cut;
}

struct Range {
  double least = std::numeric_limits<double>::infinity(), most = -least;
  void see(double value) {
    if (!std::isfinite(value)) return;
    least = std::min(least, value);
    most = std::max(most, value);
  }
  double share(double value) const { return most > least ? (value - least) / (most - least) : 1; }
};

// `largest`: of the whole map; beside numbers of size 1 a very small one is as good as 0.
std::string number(double value, double largest) {
  const double size = std::abs(value);
  if (size != 0 && ((size < 0.01 && largest < 0.1) || size >= 100000)) return fmt::format("{:.1e}", value);
  return fmt::format("{:.{}f}", value, size < 10 ? 2 : size < 1000 ? 1 : 0);
}

}  // namespace

// A map whose numbers are to be read; one without goes to draw/.
std::string to_terminal(const MapFigure& map, Language language, const draw::Screen& screen) {
  if (!map.digits) return draw::to_terminal(picture_of(map, language), screen);
  Range range;
  for (const auto& row : map.values)
    for (const double value : row) range.see(value);
  const std::size_t columns = map.values.empty() ? 0 : map.values.front().size();
  int margin = 0, cell = 6;
  for (std::size_t r = 0; r < map.values.size(); ++r)
    margin = std::max(margin, draw::columns_of(label_of(map.row_labels, r, language)));
  margin = std::min(margin, 16);
  for (std::size_t c = 0; c < columns; ++c)
    cell = std::max(cell, std::min(10, draw::columns_of(label_of(map.column_labels, c, language)) + 1));
  const double largest = std::max(std::abs(range.least), std::abs(range.most));
  for (const auto& row : map.values)
    for (const double value : row)
      if (std::isfinite(value)) cell = std::max(cell, draw::columns_of(number(value, largest)) + 1);
  const int room = screen.columns - margin - 3;
  const std::size_t shown = std::min(columns, static_cast<std::size_t>(std::max(1, room / cell)));

  std::string text = wrapped(map.title.in(language), screen.columns) + "\n";
  text += fmt::format("{}  {} → / {} ↓\n", std::string(static_cast<std::size_t>(margin), ' '),
                      map.columns_are.in(language), map.rows_are.in(language));
  text += std::string(static_cast<std::size_t>(margin) + 2, ' ');
  for (std::size_t c = 0; c < shown; ++c) text += fitted(label_of(map.column_labels, c, language), cell);
  text += "\n";
  for (std::size_t r = 0; r < map.values.size(); ++r) {
    text += fitted(label_of(map.row_labels, r, language), margin) + "  ";
    for (std::size_t c = 0; c < shown; ++c) {
      const double value = map.values[r][c];
      const bool seen = std::isfinite(value);
      const double share = seen ? range.share(value) : 0;
      const std::string inside = fitted(seen ? number(value, largest) : "·", cell);
      if (screen.colours != draw::Colours::none && seen)
        text += cell_colour(screen.colours, std::sqrt(share)) + inside + "\x1b[0m";
      else
        text += inside;
    }
    text += "\n";
  }
  if (shown < columns) text += fmt::format("  ... {} / {}\n", shown, columns);
  return text;
}

std::string to_terminal(const CurvesFigure& figure, Language language, const draw::Screen& screen) {
  return draw::to_terminal(picture_of(figure, language), screen);
}

}  // namespace attend::labs
