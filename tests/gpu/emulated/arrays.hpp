// What the tests of emulated kernels share: checks that are counted, and arrays of a GPU's types.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "attend/attend.hpp"

namespace emulated {

// What may be done to the scores of a case.
struct Terms {
  double softcap = 0, scale = 0, dropout = 0;
  bool bias = false, alibi = false, sinks = false;
};

using namespace attend;

inline int checks = 0, failed = 0;
inline std::mt19937 numbers(3);

inline void check(const std::string& what, bool ok, double got) {
  ++checks;
  if (!ok) ++failed, std::printf("FAILED %s: %.3g\n", what.c_str(), got);
}

// Elements of one of the types that a GPU has, and the same in double.
struct Array {
  DType dtype;
  Shape shape;
  std::vector<double> wide;
  std::vector<std::uint16_t> halves;
  std::vector<float> floats;

  Array(DType type, const Shape& of, double scale)
      : dtype(type),
        shape(of),
        wide(static_cast<std::size_t>(of[0] * of[1] * of[2] * of[3])),
        halves(dtype == DType::f32 ? 0 : wide.size() + 8),
        floats(dtype == DType::f32 ? wide.size() : 0) {
    std::normal_distribution<float> normal;
    for (std::size_t n = 0; n < wide.size(); ++n)
      set(n, scale == 0 ? NAN : static_cast<float>(scale) * normal(numbers));
  }
  std::uint16_t* aligned() const {  // to 16 bytes
    const auto at = reinterpret_cast<std::uintptr_t>(halves.data());
    return const_cast<std::uint16_t*>(halves.data()) + (16 - at % 16) % 16 / 2;
  }
  void* data() const { return dtype == DType::f32 ? const_cast<float*>(floats.data()) : static_cast<void*>(aligned()); }
  void set(std::size_t n, float x) {
    if (dtype == DType::f32)
      floats[n] = x;
    else
      aligned()[n] = dtype == DType::bf16 ? to_bfloat16(x).bits : to_float16(x).bits;
    wide[n] = get(n);
  }
  double get(std::size_t n) const {
    if (dtype == DType::f32) return floats[n];
    return dtype == DType::bf16 ? to_float(BFloat16{aligned()[n]}) : to_float(Float16{aligned()[n]});
  }
  MutableView view() const { return {dtype, data(), shape, contiguous_strides(shape)}; }
  MutableView wide_view() { return {DType::f64, wide.data(), shape, contiguous_strides(shape)}; }
};

}  // namespace emulated
