// Layer normalisation over the last dimension.
#pragma once

#include <optional>

#include "attend/export.h"
#include "attend/tensor.hpp"

namespace attend {

// y = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias; weight and bias [1, 1, 1, dim] of any dtype. y may be x.
// Rows in and out are all f64, or each of f32, f16 and bf16.
ATTEND_API void layer_norm(View x, View weight, std::optional<View> bias, MutableView y, double eps = 1e-5);

struct LayerNormGradients {
  MutableView dx;
  MutableView dweight;
  std::optional<MutableView> dbias{};  // the sums of dy; unless wanted: none
};
// Overwrites them; dweight and dbias are [1, 1, 1, dim] of any dtype. dx may be dy.
ATTEND_API void layer_norm_backward(View dy, View x, View weight, const LayerNormGradients& gradients,
                                    double eps = 1e-5);

}  // namespace attend
