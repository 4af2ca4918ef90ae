// Sums of tensors, in double, over views of any dtype.
#pragma once

#include "attend/tensor.hpp"

namespace attend::reference {

void add(const View& x, const View& y, const MutableView& z);

}  // namespace attend::reference
