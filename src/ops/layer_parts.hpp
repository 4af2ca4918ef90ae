// What the layers share: parameters drawn at random, what a step asks of its options, slices and copies.
#pragma once

#include <cstdint>
#include <type_traits>

#include "attend/attention.hpp"
#include "attend/tensor.hpp"

namespace attend {

void fill(Tensor& tensor, double value);

// Uniform in +-1/sqrt(inputs), from stream number `stream` of the seed: the same on every machine.
void draw_uniform(Tensor& tensor, std::uint64_t seed, std::uint64_t stream, std::int64_t inputs);

// The new tokens are the last of the sequence: masks and ALiBi must count from the last key.
void check_step_options(const char* op, const AttentionOptions& options);

Tensor copy_of(const View& x);

// Positions [first, first + count) of a view.
template <class Void>
BasicView<Void> slice_length(BasicView<Void> x, std::int64_t first, std::int64_t count) {
  using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
  x.data = static_cast<Byte*>(x.data) + first * x.strides[2] * size_of(x.dtype);
  x.shape[2] = count;
  return x;
}

}  // namespace attend
