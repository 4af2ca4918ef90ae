// Sums of tensors, as residuals are, and changes of dtype.
#pragma once

#include "attend/export.h"
#include "attend/tensor.hpp"

namespace attend {

// z = x + y, made in f32 and rounded once; dtypes may differ unless one is f64. z may be x or y. The gradient of both
// is that of z.
ATTEND_API void add(View x, View y, MutableView z);

// y = x, rounded to the dtype of y. Neither is f64 unless both are.
ATTEND_API void convert(View x, MutableView y);

}  // namespace attend
