// A tensor in one of the layouts of the case list, with NaN in every gap and a check that gaps stay as they were.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attend/tensor.hpp"
#include "support/cases.hpp"

namespace attend::test {

class Buffer {
 public:
  // `flavour` changes how the odd layout is odd. All bytes start as 0xFF, a NaN in every dtype.
  Buffer(DType dtype, const Shape& shape, Layout layout, int flavour = 0);
  Buffer(DType dtype, const Shape& shape, const Strides& strides);

  Buffer(Buffer&&) = default;  // the memory stays where it is
  Buffer& operator=(Buffer&&) = default;

  MutableView view() { return view_; }
  View view() const { return view_; }

  template <class T>
  void fill(const std::vector<T>& contiguous) {
    std::size_t n = 0;
    for_each([&](std::int64_t offset) { set(offset, static_cast<double>(contiguous[n++])); });
  }
  std::vector<double> read() const;  // contiguous
  bool gaps_are_whole() const;       // no byte outside the elements was written
  const std::vector<std::byte>& bytes() const { return memory_; }
  std::vector<std::byte>& bytes() { return memory_; }

 private:
  template <class F>
  void for_each(F&& f) const {
    const auto [B, H, L, D] = view_.shape;
    for (std::int64_t b = 0; b < B; ++b) {
      for (std::int64_t h = 0; h < H; ++h) {
        for (std::int64_t i = 0; i < L; ++i) {
          for (std::int64_t d = 0; d < D; ++d) {
            f(b * view_.strides[0] + h * view_.strides[1] + i * view_.strides[2] + d * view_.strides[3]);
          }
        }
      }
    }
  }
  void set(std::int64_t offset, double value);

  std::vector<std::byte> memory_;
  MutableView view_;
};

Strides layout_strides(const Shape& shape, Layout layout, int flavour);

// Contiguous values as a tensor of the dtype.
Tensor to_tensor(DType dtype, const Shape& shape, const std::vector<float>& values);
std::vector<double> to_doubles(const View& view);

}  // namespace attend::test
