// Copying rows between layouts.
#include "ops/rows.hpp"

namespace attend {

void copy_rows(const View& from, const MutableView& to) {
  const std::int64_t bytes = size_of(from.dtype), cols = from.dim();
  const bool packed = from.strides[3] == 1 && to.strides[3] == 1;
  for_each_row(row_count(from.shape), cols, [&](std::int64_t r) {
    const char* source = static_cast<const char*>(from.data) + row_start(from.shape, from.strides, r) * bytes;
    char* target = static_cast<char*>(to.data) + row_start(to.shape, to.strides, r) * bytes;
    if (packed) {
      std::memcpy(target, source, static_cast<std::size_t>(cols * bytes));
      return;
    }
    for (std::int64_t j = 0; j < cols; ++j) {
      std::memcpy(target + j * to.strides[3] * bytes, source + j * from.strides[3] * bytes,
                  static_cast<std::size_t>(bytes));
    }
  });
}

}  // namespace attend
