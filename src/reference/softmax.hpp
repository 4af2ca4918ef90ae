// Softmax by its formula, in double, over views of any dtype.
#pragma once

#include "attend/tensor.hpp"

namespace attend::reference {

void softmax(const View& x, const MutableView& y);
void softmax_backward(const View& dy, const View& y, const MutableView& dx);

}  // namespace attend::reference
