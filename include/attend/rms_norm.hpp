// Root-mean-square normalisation over the last dimension.
#pragma once

#include <optional>

#include "attend/export.h"
#include "attend/tensor.hpp"

namespace attend {

// y = x / sqrt(mean(x^2) + eps) * weight, weight [1, 1, 1, dim] of any dtype. y may be x. Rows in and out
// are all f64, or each of f32, f16 and bf16: a residual in f32 goes into products in bf16.
ATTEND_API void rms_norm(View x, View weight, MutableView y, double eps = 1e-6);

// dx and dweight (overwritten; dweight is [1, 1, 1, dim]). dx may be dy. With `plus`, which dx may be too, dx is its
// sum with the gradient: that of a residual which x was read from.
ATTEND_API void rms_norm_backward(View dy, View x, View weight, MutableView dx, MutableView dweight, double eps = 1e-6,
                                  std::optional<View> plus = std::nullopt);

}  // namespace attend
