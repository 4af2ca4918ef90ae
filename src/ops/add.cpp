// Sums of tensors, and changes of dtype.
#include "attend/add.hpp"

#include <string>

#include "base/check.hpp"
#include "ops/float_rows.hpp"
#include "reference/add.hpp"

namespace attend {
namespace {

constexpr std::int64_t kAtOnce = 16384;

}  // namespace

void add(View x, View y, MutableView z) {
  const char* op = "add";
  check_readable(op, "x", x);
  check_readable(op, "y", y);
  check_writable(op, "z", z);
  check_shape(op, "y", y.shape, x.shape);
  check_shape(op, "z", z.shape, x.shape);
  check_family(op, "y", y.dtype, x.dtype);
  check_family(op, "z", z.dtype, x.dtype);
  check_all_apart(op, {{"z", z, "x", "y"}}, {{"x", x}, {"y", y}});
  if (x.dtype == DType::f64) return reference::add(x, y, z);
  flatten(x, y, z);
  const FloatRows a(x), b(y);
  const MutableFloatRows to(z);
  const RowKernels& table = kernels().rows;
  for_each_piece(z.shape, kAtOnce, [&](std::int64_t r, std::int64_t first, std::int64_t n) {
    float buffer[kPiece], other[kPiece];
    table.add(a.read(r, first, n, buffer), b.read(r, first, n, other), n, to.place(r, first, buffer));
    to.written(r, first, n, buffer);
  });
}

void convert(View x, MutableView y) {
  const char* op = "convert";
  check_readable(op, "x", x);
  check_writable(op, "y", y);
  check_shape(op, "y", y.shape, x.shape);
  check_family(op, "y", y.dtype, x.dtype);
  check_all_apart(op, {{"y", y}}, {{"x", x}});
  if (x.dtype == y.dtype) return copy_rows(x, y);
  flatten(x, y);
  const FloatRows from(x);
  const MutableFloatRows to(y);
  const RowKernels& table = kernels().rows;
  for_each_piece(y.shape, kAtOnce, [&](std::int64_t r, std::int64_t first, std::int64_t n) {
    float buffer[kPiece];
    float* place = to.place(r, first, buffer);
    const float* numbers = from.read(r, first, n, place);
    if (to.in_place() && numbers != place) table.store(DType::f32, place, 1, n, numbers);
    to.written(r, first, n, numbers);
  });
}

}  // namespace attend
