// The matrix product of a projection by its formula, in double, over views of any dtype.
#pragma once

#include <optional>

#include "attend/linear.hpp"
#include "attend/tensor.hpp"

namespace attend::reference {

void linear(const View& x, const View& weight, const std::optional<View>& bias, const MutableView& y);
void linear_backward(const View& dy, const View& x, const View& weight, const LinearGradients& gradients);

}  // namespace attend::reference
