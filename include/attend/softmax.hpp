// Softmax over the last dimension.
#pragma once

#include "attend/export.h"
#include "attend/tensor.hpp"

namespace attend {

// y = softmax(x) along dim. A row of -inf gives zeros. y may be x.
ATTEND_API void softmax(View x, MutableView y);

// dx = y * (dy - sum(y * dy)). dx may be dy.
ATTEND_API void softmax_backward(View dy, View y, MutableView dx);

}  // namespace attend
