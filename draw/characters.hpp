// What drawings with characters share.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "draw/drawing.hpp"
#include "draw/terminal.hpp"

namespace attend::draw {

inline constexpr const char* kReset = "\x1b[0m";
inline constexpr std::string_view kShades = ".:-=+*#%@";  // a space is what the mask hides

inline bool plain(const Screen& screen) {
  return screen.colours == Colours::none;
}

// `layer` is 38 for the character and 48 for what is behind it.
std::string escape(Colours colours, int layer, const Rgb& rgb);
// In this colour where there are colours.
std::string coloured(const Screen& screen, const Rgb& rgb, const std::string& text);

char shade(double place);
// A cell of so many columns: its colour behind spaces, or a shade.
std::string cell_text(double value, const ColourScale& scale, const Screen& screen, int columns);
// Two rows of cells in one line: half blocks, or shades of their mean.
std::string two_rows(const Grid& grid, const ColourScale& scale, const Screen& screen, std::int64_t top);
std::string terminal_legend(const std::vector<const Grid*>& grids, const ColourScale& scale, const Screen& screen);

std::string padded(const std::string& text, int columns);         // spaces behind; cut where it is longer
std::string right_aligned(const std::string& text, int columns);  // spaces before
int widest(const std::vector<std::string>& texts);

// Labels as the screen can show them.
std::vector<std::string> screen_labels(const std::vector<std::string>& pieces, std::size_t most, const Screen& screen);

std::string in_characters(const HeatMap& map, const Screen& screen);
std::string in_characters(const TokenLines& lines, const Screen& screen);
std::string in_characters(const HeadSheet& sheet, const Screen& screen);
std::string in_characters(const Chart& chart, const Screen& screen);
std::string in_characters(const Bars& bars, const Screen& screen);

}  // namespace attend::draw
