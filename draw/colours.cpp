// How numbers become colours.
#include "draw/colours.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

namespace attend::draw {
namespace {

using Stop = std::array<double, 3>;

// By van der Walt and Smith (matplotlib, CC0), at every tenth of the way.
constexpr Stop kViridis[] = {{68, 1, 84},    {72, 36, 117},  {65, 68, 135},  {53, 95, 141},
                             {42, 120, 142}, {33, 145, 140}, {34, 168, 132}, {68, 191, 112},
                             {122, 209, 81}, {189, 223, 38}, {253, 231, 37}};
// By Nuñez, Anderton and Renslow (matplotlib, CC0), at every ninth.
constexpr Stop kCividis[] = {{0, 34, 78},     {18, 53, 112},   {59, 73, 108},   {87, 93, 109},  {112, 113, 115},
                             {138, 134, 120}, {165, 156, 116}, {195, 179, 105}, {225, 204, 85}, {254, 232, 56}};
// Zero has the colour of the paper.
constexpr Stop kDifference[] = {{0, 68, 124},    {0, 114, 178}, {120, 178, 219}, {255, 255, 255},
                                {246, 176, 112}, {213, 94, 0},  {140, 52, 0}};
constexpr Stop kDarkDifference[] = {{140, 208, 255}, {64, 160, 230}, {28, 84, 132},  {16, 20, 27},
                                    {138, 74, 20},   {232, 126, 32}, {255, 196, 128}};

// Straight lines between the stops.
Rgb mixed(std::span<const Stop> stops, double t) {
  const double place = std::clamp(t, 0.0, 1.0) * static_cast<double>(stops.size() - 1);
  const std::size_t stop = std::min(stops.size() - 2, static_cast<std::size_t>(place));
  Rgb colour{};
  for (std::size_t c = 0; c < 3; ++c) {
    const double part = place - static_cast<double>(stop);
    colour[c] = static_cast<std::uint8_t>(std::lround(stops[stop][c] + part * (stops[stop + 1][c] - stops[stop][c])));
  }
  return colour;
}

double scaled(double share, Scaling scaling) {
  const double t = std::clamp(share, 0.0, 1.0);
  if (scaling == Scaling::linear) return t;
  if (scaling == Scaling::square_root) return std::sqrt(t);
  return std::max(0.0, 1 + std::log(std::max(t, 1e-300)) / std::log(kLogarithmicRange));
}

double unscaled(double place, Scaling scaling) {
  if (scaling == Scaling::linear) return place;
  if (scaling == Scaling::square_root) return place * place;
  return place <= 0 ? 0 : std::pow(kLogarithmicRange, place - 1);
}

}  // namespace

double highest_of(const std::vector<const Grid*>& grids) {
  std::vector<double> sizes;
  for (const Grid* grid : grids)
    for (const double value : grid->values)
      if (std::isfinite(value)) sizes.push_back(std::abs(value));
  if (sizes.empty()) return 1;
  const auto at = sizes.begin() + static_cast<std::ptrdiff_t>(std::ceil(static_cast<double>(sizes.size() - 1) * 0.995));
  std::nth_element(sizes.begin(), at, sizes.end());
  if (*at < 1e-300) return 1;
  const double digit = std::pow(10.0, std::floor(std::log10(*at)));
  return std::round(*at / digit) * digit;
}

double highest_of(const Grid& grid) {
  return highest_of(std::vector<const Grid*>{&grid});
}

double place_of(double value, const ColourScale& scale) {
  const double share = value / scale.high;
  if (scale.palette != Palette::difference) return scaled(share, scale.scaling);
  return 0.5 + std::copysign(scaled(std::abs(share), scale.scaling) / 2, share);
}

double value_at(double place, const ColourScale& scale) {
  if (scale.palette != Palette::difference) return scale.high * unscaled(place, scale.scaling);
  return std::copysign(scale.high * unscaled(std::abs(2 * place - 1), scale.scaling), place - 0.5);
}

Rgb colour_at(double t, Palette palette, bool dark) {
  if (palette == Palette::viridis) return mixed(kViridis, t);
  if (palette == Palette::cividis) return mixed(kCividis, t);
  return dark ? mixed(kDarkDifference, t) : mixed(kDifference, t);
}

}  // namespace attend::draw
