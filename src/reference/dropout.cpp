// Dropout of a tensor by its definition, in double, over views of any dtype.
#include "reference/dropout.hpp"

#include "base/elements.hpp"
#include "base/random.hpp"
#include "reference/rows.hpp"

namespace attend::reference {

void dropout(const View& x, const MutableView& y, const Dropout& options) {
  const std::uint32_t threshold = dropout_threshold(options.probability);
  std::uint64_t index = 0;
  for_each_row(x.shape, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    for (std::int64_t d = 0; d < x.dim(); ++d, ++index) {
      const bool kept = element_dropout_bits(options.seed, index) >= threshold;
      store(y, b, h, i, d, kept ? load(x, b, h, i, d) / (1 - options.probability) : 0);
    }
  });
}

}  // namespace attend::reference
