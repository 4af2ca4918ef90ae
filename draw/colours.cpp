// The colours of a map.
#include "draw/colours.hpp"

#include <algorithm>
#include <cmath>

namespace attend::draw {

Rgb viridis(double t) {
  // By van der Walt and Smith (matplotlib, CC0), at every tenth of the way; straight lines between.
  static constexpr double kStops[][3] = {{68, 1, 84},    {72, 36, 117},  {65, 68, 135},  {53, 95, 141},
                                         {42, 120, 142}, {33, 145, 140}, {34, 168, 132}, {68, 191, 112},
                                         {122, 209, 81}, {189, 223, 38}, {253, 231, 37}};
  const double place = std::clamp(t, 0.0, 1.0) * 10;
  const int stop = std::min(9, static_cast<int>(place));
  Rgb colour{};
  for (std::size_t c = 0; c < 3; ++c) {
    const double mixed = kStops[stop][c] + (place - stop) * (kStops[stop + 1][c] - kStops[stop][c]);
    colour[c] = static_cast<std::uint8_t>(std::lround(mixed));
  }
  return colour;
}

double brightness(double share, double brightest) {
  return std::sqrt(std::clamp(share / brightest, 0.0, 1.0));
}

}  // namespace attend::draw
