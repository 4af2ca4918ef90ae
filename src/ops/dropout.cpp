// Dropout of a tensor's elements.
#include "attend/dropout.hpp"

#include <string>

#include "base/check.hpp"
#include "base/random.hpp"
#include "ops/float_rows.hpp"
#include "reference/dropout.hpp"

namespace attend {

void dropout(View x, MutableView y, const Dropout& options) {
  const char* op = "dropout";
  check_readable(op, "x", x);
  check_writable(op, "y", y);
  check_shape(op, "y", y.shape, x.shape);
  check_dtype(op, "y", y.dtype, x.dtype);
  check_all_apart(op, {{"y", y, "x"}}, {{"x", x}});
  if (!(options.probability >= 0 && options.probability < 1))
    fail(op, "probability is " + std::to_string(options.probability) + ", expected [0, 1)");
  if (x.dtype == DType::f64) return reference::dropout(x, y, options);
  const std::uint32_t threshold = dropout_threshold(options.probability);
  const auto scale = static_cast<float>(1.0 / (1.0 - options.probability));
  flatten(x, y);
  const FloatRows from(x);
  const MutableFloatRows to(y);
  const RowKernels& table = kernels().rows;
  constexpr std::int64_t kAtOnce = 4096;
  for_each_piece(y.shape, kAtOnce, [&](std::int64_t r, std::int64_t first, std::int64_t n) {
    float buffer[kPiece];
    table.dropout(from.read(r, first, n, buffer), n, static_cast<std::uint64_t>(r * x.dim() + first), options.seed,
                  threshold, scale, to.place(r, first, buffer));
    to.written(r, first, n, buffer);
  });
}

}  // namespace attend
