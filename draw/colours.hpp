// The colours of a map: viridis, which grows evenly brighter and reads the same to colour-blind eyes.
#pragma once

#include <array>
#include <cstdint>

namespace attend::draw {

using Rgb = std::array<std::uint8_t, 3>;

// t in [0, 1], dark to bright.
Rgb viridis(double t);

// How bright a share is drawn: the square root, so that small shares show; `brightest` and above give 1.
double brightness(double share, double brightest);

}  // namespace attend::draw
