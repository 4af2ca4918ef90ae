// Dropout of a tensor's elements. (That of attention's weights is an option of attention.)
#pragma once

#include "attend/attention.hpp"
#include "attend/export.h"
#include "attend/tensor.hpp"

namespace attend {

// y = x / (1 - probability) where an element is kept, and 0 elsewhere, whatever it was. Which are kept is a function of
// the seed and of the element's number in the order of the shape, whatever the strides. y may be x. The gradient is the
// same call on dy.
ATTEND_API void dropout(View x, MutableView y, const Dropout& options);

}  // namespace attend
