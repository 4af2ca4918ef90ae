// Sums of tensors, in double, over views of any dtype.
#include "reference/add.hpp"

#include "base/elements.hpp"
#include "reference/rows.hpp"

namespace attend::reference {

void add(const View& x, const View& y, const MutableView& z) {
  for_each_row(x.shape, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    for (std::int64_t d = 0; d < x.dim(); ++d) store(z, b, h, i, d, load(x, b, h, i, d) + load(y, b, h, i, d));
  });
}

}  // namespace attend::reference
