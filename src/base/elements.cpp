// One element of a view as double, and back. Memory is copied, not cast: a view may be misaligned.
#include "base/elements.hpp"

#include <bit>
#include <cmath>
#include <cstring>

namespace attend {
namespace {

template <class T>
T read(const void* data, std::int64_t index) {
  T x;
  std::memcpy(&x, static_cast<const char*>(data) + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return x;
}

template <class T>
void write(void* data, std::int64_t index, T x) {
  std::memcpy(static_cast<char*>(data) + index * static_cast<std::int64_t>(sizeof(T)), &x, sizeof(T));
}

// Rounds to odd: an inexact result has its last bit set, so rounding it once more to a half format gives what
// rounding the double directly would have given.
float narrow_to_odd(double x) {
  const float nearest = static_cast<float>(x);
  if (std::isnan(x) || std::isinf(nearest) || static_cast<double>(nearest) == x) return nearest;
  if ((std::bit_cast<std::uint32_t>(nearest) & 1) != 0) return nearest;
  const bool up = static_cast<double>(nearest) < x;
  return std::nextafter(nearest, up ? HUGE_VALF : -HUGE_VALF);
}

}  // namespace

double load_element(DType dtype, const void* data, std::int64_t index) {
  switch (dtype) {
    case DType::f32:
      return static_cast<double>(read<float>(data, index));
    case DType::f16:
      return static_cast<double>(to_float(read<Float16>(data, index)));
    case DType::bf16:
      return static_cast<double>(to_float(read<BFloat16>(data, index)));
    case DType::f64:
      break;
  }
  return read<double>(data, index);
}

void store_element(DType dtype, void* data, std::int64_t index, double value) {
  switch (dtype) {
    case DType::f32:
      return write(data, index, static_cast<float>(value));
    case DType::f16:
      return write(data, index, to_float16(narrow_to_odd(value)));
    case DType::bf16:
      return write(data, index, to_bfloat16(narrow_to_odd(value)));
    case DType::f64:
      break;
  }
  write(data, index, value);
}

}  // namespace attend
