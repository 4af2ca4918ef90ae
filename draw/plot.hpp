// A head's map as a picture, with axes, title and legend.
#pragma once

#include <string>
#include <vector>

#include "draw/head_map.hpp"
#include "draw/png.hpp"

namespace attend::draw {

inline constexpr std::int64_t kPlotCells = 512;  // the most that a picture shows along a side

struct Captions {
  std::string title;
  std::vector<std::string> lines;
  std::vector<std::string> words{};  // of a map of single tokens: on both axes, in place of numbers
};

// Keys from left to right, queries from top to bottom. The upper right half, which causal attention never fills, holds
// the captions and the legend.
RgbImage plot(const HeadMap& map, const Captions& captions);

}  // namespace attend::draw
