// The chart of ratios to a rival, from the figures that bench/peers/run.py writes.
#pragma once

#include <string>

namespace attend::bench {

// Draws the rows of the JSON file `figures` that have a ratio to PyTorch into `svg`; the same figures can be drawn
// again at any time.
void draw_ratios(const std::string& figures, const std::string& svg);

}  // namespace attend::bench
