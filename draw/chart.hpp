// Lines against length or steps, as an SVG and as a picture: one layout, two pens.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "draw/png.hpp"

namespace attend::draw {

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x and y, both above 0; x rising
};

struct Panel {
  std::string title;
  double step;                         // the ratio of two y ticks: 10, or 16 for bytes
  std::string (*label)(double value);  // of a y tick
  std::vector<Series> series;          // the same place in every panel has the same colour; empty ones are left out
  bool linear = false;                 // both axes; else both are logarithmic
  const char* across = "tokens";       // what x is
};

struct Chart {
  std::string title;
  std::string note;     // under the panels
  std::string warning;  // under the note; may be empty
  std::vector<Panel> panels;
};

std::string to_svg(const Chart& chart);
RgbImage to_picture(const Chart& chart);

}  // namespace attend::draw
