// Dropout of a row of weights.
#pragma once

#include <cstdint>

namespace attend {

// For keys j0 .. j0+count of query i: weights kept are multiplied by `scale`, the others become 0.
void drop_row(std::uint64_t seed, std::uint32_t threshold, float scale, std::int64_t b, std::int64_t h, std::int64_t i,
              std::int64_t j0, std::int64_t count, float* weights);

}  // namespace attend
