// The elementwise parts of a transformer block, over contiguous tensors.
#pragma once

#include "attend/transformer_block.hpp"

namespace attend {

// hidden = f(up), or f(gate) * up. `gate` is empty but for swiglu. Not for f64.
void activate(FeedForward kind, const Tensor& gate, const Tensor& up, Tensor& hidden);
// `dhidden` becomes the gradient of up; dgate is written where there is a gate.
void activate_backward(FeedForward kind, const Tensor& gate, const Tensor& up, Tensor& dhidden, Tensor& dgate);

// z = x + y, rounded once; x and y of one dtype, z of that or f32; any strides. z may be x or y.
void add_rows(const View& x, const View& y, const MutableView& z);
// sum += x: sum f32, x of any dtype but f64; any strides.
void accumulate(const View& x, const MutableView& sum);
// x rounded to `dtype`.
Tensor rounded(const View& x, DType dtype);

}  // namespace attend
