// Maps drawn with characters, for a terminal.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "draw/head_map.hpp"

namespace attend::draw {

enum class Colours { none, palette, full };  // none, the 256 of xterm, 24 bits

struct Screen {
  Colours colours = Colours::none;
  int columns = 80;
};

// `text` set off from the rest where there are colours.
std::string emphasised(const Screen& screen, const std::string& text);

// At most this many cells fit beside the labels.
std::int64_t cells_that_fit(const Screen& screen);
// Two rows of cells a line, with axes and a legend: coloured half blocks, or shades of plain characters.
std::string heat_map(const HeadMap& map, const Screen& screen);

// The same for a map of single tokens, with their words on both axes: a row a line.
bool words_fit(const std::vector<std::string>& words, const Screen& screen);
std::string word_map(const HeadMap& map, const std::vector<std::string>& words, const Screen& screen);

}  // namespace attend::draw
