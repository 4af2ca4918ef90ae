// Dropout of a row of weights, four keys to a draw of the generator.
#include "core/dropout.hpp"

#include "base/random.hpp"

namespace attend {

void drop_row(std::uint64_t seed, std::uint32_t threshold, float scale, std::int64_t b, std::int64_t h, std::int64_t i,
              std::int64_t j0, std::int64_t count, float* weights) {
  for (std::int64_t c = 0; c < count; ++c)
    weights[c] = dropout_bits(seed, b, h, i, j0 + c) >= threshold ? weights[c] * scale : 0.0F;
}

}  // namespace attend
