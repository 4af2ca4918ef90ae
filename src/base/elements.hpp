// One element of a view as double, and back: for the reference and for cold paths.
#pragma once

#include <cstdint>

#include "attend/tensor.hpp"

namespace attend {

double load_element(DType dtype, const void* data, std::int64_t index);
void store_element(DType dtype, void* data, std::int64_t index, double value);

inline std::int64_t offset_of(const Strides& s, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d) {
  return b * s[0] + h * s[1] + i * s[2] + d * s[3];
}
inline double load(const View& x, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d) {
  return load_element(x.dtype, x.data, offset_of(x.strides, b, h, i, d));
}
inline void store(const MutableView& x, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d, double value) {
  store_element(x.dtype, x.data, offset_of(x.strides, b, h, i, d), value);
}

}  // namespace attend
