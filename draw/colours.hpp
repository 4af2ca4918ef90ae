// How numbers become colours: palettes that grow evenly brighter and read the same to colour-blind eyes.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "draw/grid.hpp"

namespace attend::draw {

using Rgb = std::array<std::uint8_t, 3>;

enum class Palette : std::uint8_t {
  viridis,     // 0 to high, dark to bright
  cividis,     // the same in blue and yellow
  difference,  // -high to high: blue, the paper's grey at 0, orange
};

enum class Scaling : std::uint8_t { square_root, linear, logarithmic };  // square root: sinks do not flatten the rest

struct ColourScale {
  Palette palette = Palette::viridis;
  Scaling scaling = Scaling::square_root;
  double high = 0;                                      // gets the last colour; 0: highest_of() decides
  std::string unit = "share of the query's attention";  // the legend's words
};

inline constexpr double kLogarithmicRange = 1e4;  // from high / this to high; what is less gets the first colour

// A round number that about one cell in 200 exceeds in size; 1 where there is nothing but zeros.
double highest_of(const Grid& grid);
double highest_of(const std::vector<const Grid*>& grids);

// Where a value lies between the ends of the palette: 0 to 1; 0.5 is zero for differences.
double place_of(double value, const ColourScale& scale);
// The value at that place: place_of's inverse, for legends.
double value_at(double place, const ColourScale& scale);
// t in [0, 1].
Rgb colour_at(double t, Palette palette, bool dark = false);

// Queries, keys, values and the output of attention, always beside their letter.
inline constexpr Rgb kQueryColour = {0x00, 0x72, 0xB2}, kKeyColour = {0xD5, 0x5E, 0x00},
                     kValueColour = {0x00, 0x9E, 0x73}, kOutputColour = {0xCC, 0x79, 0xA7};

}  // namespace attend::draw
