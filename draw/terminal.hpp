// Pictures drawn with characters, for a terminal: in 24-bit colours, in 256, or in plain ASCII without any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "draw/picture.hpp"

namespace attend::draw {

enum class Colours : std::uint8_t { none, palette, full };  // none, the 256 of xterm, 24 bits

struct Screen {
  Colours colours = Colours::none;
  int columns = 80;
  Language language = Language::english;
};

// Heat maps of tokens as words or half blocks (pooled to what fits), sheets of heads, curves in braille, bars. Ends
// with a line end. The title comes first where there is one. Without colours all of it is ASCII but for the labels.
std::string to_terminal(const Picture& picture, const Screen& screen);

// At most this many cells of a heat map fit beside its numbers.
std::int64_t cells_that_fit(const Screen& screen);
// Whether a map of single tokens fits with its words on both axes.
bool words_fit(const std::vector<std::string>& words, const Screen& screen);

// One line of eight heights, the latest `columns` values: for a value that is watched while it changes.
std::string sparkline(const std::vector<double>& values, int columns, const Screen& screen);

// `text` set off from the rest where there are colours.
std::string emphasised(const Screen& screen, const std::string& text);

}  // namespace attend::draw
