// Layer normalisation by its formula, in double, over views of any dtype.
#pragma once

#include "attend/layer_norm.hpp"

namespace attend::reference {

void layer_norm(const View& x, const View& weight, const std::optional<View>& bias, const MutableView& y, double eps);
void layer_norm_backward(const View& dy, const View& x, const View& weight, const LayerNormGradients& gradients,
                         double eps);

}  // namespace attend::reference
