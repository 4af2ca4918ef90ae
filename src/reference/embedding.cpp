// Rows of a table by their number, and the gradient of the table, in double, over views of any dtype.
#include "reference/embedding.hpp"

#include <cstddef>
#include <vector>

#include "base/elements.hpp"
#include "reference/rows.hpp"

namespace attend::reference {

void embedding(const View& table, std::span<const std::int64_t> tokens, const MutableView& y) {
  std::size_t n = 0;
  for_each_row(y.shape, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    for (std::int64_t d = 0; d < y.dim(); ++d) store(y, b, h, i, d, load(table, 0, 0, tokens[n], d));
    ++n;
  });
}

void embedding_backward(const View& dy, std::span<const std::int64_t> tokens, const MutableView& dtable) {
  const std::int64_t D = dtable.dim();
  std::vector<double> sums(static_cast<std::size_t>(dtable.length() * D));
  std::size_t n = 0;
  for_each_row(dy.shape, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    for (std::int64_t d = 0; d < D; ++d) sums[static_cast<std::size_t>(tokens[n] * D + d)] += load(dy, b, h, i, d);
    ++n;
  });
  for_each_row(dtable.shape, [&](std::int64_t, std::int64_t, std::int64_t t) {
    for (std::int64_t d = 0; d < D; ++d) store(dtable, 0, 0, t, d, sums[static_cast<std::size_t>(t * D + d)]);
  });
}

}  // namespace attend::reference
