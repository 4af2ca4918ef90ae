// Drawing with characters: colours, shades, legends, and one line of heights.
#include "draw/terminal.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "draw/characters.hpp"
#include "draw/columns.hpp"
#include "draw/labels.hpp"

namespace attend::draw {
namespace {

// On a terminal the paper may be dark or light: what the palette of differences has at zero is dark there.
Rgb screen_colour(double value, const ColourScale& scale) {
  return cell_colour(value, scale, ink_of(Theme::dark));
}

}  // namespace

std::string escape(Colours colours, int layer, const Rgb& rgb) {
  if (colours == Colours::full) return fmt::format("\x1b[{};2;{};{};{}m", layer, rgb[0], rgb[1], rgb[2]);
  // The 6 x 6 x 6 cube of the xterm palette, whose steps are 0, 95, 135, ..., 255.
  const auto step = [](int x) { return x < 48 ? 0 : x < 115 ? 1 : (x - 35) / 40; };
  return fmt::format("\x1b[{};5;{}m", layer, 16 + 36 * step(rgb[0]) + 6 * step(rgb[1]) + step(rgb[2]));
}

std::string coloured(const Screen& screen, const Rgb& rgb, const std::string& text) {
  return plain(screen) ? text : escape(screen.colours, 38, rgb) + text + kReset;
}

char shade(double place) {
  return kShades[static_cast<std::size_t>(
      std::lround(std::clamp(place, 0.0, 1.0) * static_cast<double>(kShades.size() - 1)))];
}

std::string cell_text(double value, const ColourScale& scale, const Screen& screen, int columns) {
  const auto count = static_cast<std::size_t>(columns);
  if (std::isnan(value)) return std::string(count, ' ');
  if (value == kEvicted) return coloured(screen, ink_of(Theme::dark).evicted, std::string(count, 'x'));
  if (plain(screen)) return std::string(count, shade(place_of(value, scale)));
  return escape(screen.colours, 48, screen_colour(value, scale)) + std::string(count, ' ') + kReset;
}

std::string two_rows(const Grid& grid, const ColourScale& scale, const Screen& screen, std::int64_t top) {
  std::string line;
  for (std::int64_t col = 0; col < grid.cols; ++col) {
    const double upper = grid.at(top, col), lower = top + 1 < grid.rows ? grid.at(top + 1, col) : kMasked;
    if (std::isnan(upper) && std::isnan(lower)) {
      line += ' ';
    } else if (plain(screen)) {
      const double mean = std::isnan(upper) ? lower : std::isnan(lower) ? upper : (upper + lower) / 2;
      line += std::isfinite(mean) ? shade(place_of(mean, scale)) : 'x';
    } else {
      line += escape(screen.colours, 38, screen_colour(std::isnan(upper) ? lower : upper, scale));
      if (!std::isnan(lower) && !std::isnan(upper)) line += escape(screen.colours, 48, screen_colour(lower, scale));
      line += std::isnan(upper) ? "▄" : "▀";
      line += kReset;
    }
  }
  return line;
}

std::string terminal_legend(const std::vector<const Grid*>& grids, const ColourScale& given, const Screen& screen) {
  const ColourScale scale = decided(given, grids);
  constexpr int kSteps = 24;
  std::string bar;
  for (int i = 0; i < (plain(screen) ? static_cast<int>(kShades.size()) : kSteps); ++i) {
    if (plain(screen))
      bar += kShades[static_cast<std::size_t>(i)];
    else
      bar += escape(screen.colours, 38, colour_at(i / (kSteps - 1.0), scale.palette, true)) + "█";
  }
  if (!plain(screen)) bar += kReset;
  bool more = false, evicted = false;
  for (const Grid* grid : grids)
    for (const double value : grid->values) {
      more = more || (std::isfinite(value) && std::abs(value) > scale.high * (1 + 1e-9));
      evicted = evicted || value == kEvicted;
    }
  const Words& words = words_of(screen.language);
  const double low = scale.palette == Palette::difference    ? -scale.high
                     : scale.scaling == Scaling::logarithmic ? scale.high / kLogarithmicRange
                                                             : 0;
  // What nearly every map shows is not said again.
  const bool usual = scale.unit.empty() || scale.unit == ColourScale{}.unit;
  return fmt::format("{:.2g} {} {:.2g}{} ({}){}{}", low, bar, scale.high, more ? words.or_more : "",
                     words.scaling[static_cast<int>(scale.scaling)],
                     evicted ? fmt::format("  x {}", words.evicted) : "", usual ? "" : "  " + printable(scale.unit));
}

std::string padded(const std::string& text, int columns) {
  const std::string cut = cut_to(text, columns);
  return cut + std::string(static_cast<std::size_t>(std::max(0, columns - columns_of(cut))), ' ');
}

std::string right_aligned(const std::string& text, int columns) {
  const std::string cut = cut_to(text, columns);
  return std::string(static_cast<std::size_t>(std::max(0, columns - columns_of(cut))), ' ') + cut;
}

int widest(const std::vector<std::string>& texts) {
  int most = 0;
  for (const std::string& text : texts) most = std::max(most, columns_of(text));
  return most;
}

std::vector<std::string> screen_labels(const std::vector<std::string>& pieces, std::size_t most, const Screen& screen) {
  return token_labels(pieces, most, plain(screen));
}

std::string to_terminal(const Picture& picture, const Screen& screen) {
  return std::visit(
      [&](const auto& what) {
        check(what);
        std::string out;
        if (!what.captions.title.empty()) out += emphasised(screen, printable(what.captions.title)) + "\n";
        for (const std::string& line : what.captions.lines) out += printable(line) + "\n";
        if (!out.empty()) out += "\n";
        out += in_characters(what, screen);
        if (!what.captions.warning.empty()) out += "\n" + printable(what.captions.warning) + "\n";
        return out;
      },
      picture);
}

std::string sparkline(const std::vector<double>& values, int columns, const Screen& screen) {
  static constexpr const char* kBlocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  static constexpr std::string_view kPlain = "_.-:=+*#";
  const std::size_t count = std::min(values.size(), static_cast<std::size_t>(std::max(columns, 0)));
  const auto first = values.end() - static_cast<std::ptrdiff_t>(count);
  double low = INFINITY, high = -INFINITY;
  for (auto v = first; v != values.end(); ++v)
    if (std::isfinite(*v)) low = std::min(low, *v), high = std::max(high, *v);
  std::string line;
  for (auto v = first; v != values.end(); ++v) {
    if (!std::isfinite(*v)) {
      line += ' ';
      continue;
    }
    const double part = high > low ? (*v - low) / (high - low) : 0;
    const auto step = static_cast<std::size_t>(std::lround(part * 7));
    line += plain(screen) ? std::string(1, kPlain[step]) : kBlocks[step];
  }
  return line;
}

std::string emphasised(const Screen& screen, const std::string& text) {
  return plain(screen) ? text : "\x1b[1m" + text + kReset;
}

}  // namespace attend::draw
