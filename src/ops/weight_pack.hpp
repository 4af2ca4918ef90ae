// Weights from the blocks of a file into tiles, and a row of them back to floats.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/weight_layout.hpp"

namespace attend {

std::int64_t weight_tile_bytes(WeightFormat format, std::int64_t in);  // InvalidArgument when it does not fit

// Rows [n0, n0 + kKeyTile) of a weight [out, in], as far as there are, whose blocks begin at `data`. `tile` is zeroed
// memory.
void pack_weight_tile(WeightFormat format, const std::byte* data, std::int64_t out, std::int64_t in, std::int64_t n0,
                      char* tile);

// Row `row` of the tile as floats, each number rounded once.
void unpack_weight_row(WeightFormat format, const char* tile, std::int64_t in, std::int64_t row, float* y);

}  // namespace attend
