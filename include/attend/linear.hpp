// The matrix product of a projection.
#pragma once

#include <optional>

#include "attend/export.h"
#include "attend/tensor.hpp"

namespace attend {

// y = x . weight^T + bias: x [B, H, L, in], weight [1, 1, out, in], bias [1, 1, 1, out], y [B, H, L, out].
// A row of y depends on that row of x alone, to the bit: not on how many rows there are, nor on the threads.
ATTEND_API void linear(View x, View weight, std::optional<View> bias, MutableView y);

struct LinearGradients {
  std::optional<MutableView> dx{};
  std::optional<MutableView> dweight{};
  std::optional<MutableView> dbias{};
  bool add = false;  // dweight (f32 then) and dbias are added to what is there, as over several batches
};
// Overwrites what is asked for. dweight may be f32 beside half types.
ATTEND_API void linear_backward(View dy, View x, View weight, const LinearGradients& gradients);

}  // namespace attend
