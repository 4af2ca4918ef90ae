// Root-mean-square normalisation by its formula, in double, over views of any dtype.
#pragma once

#include "attend/tensor.hpp"

namespace attend::reference {

void rms_norm(const View& x, const View& weight, const MutableView& y, double eps);
void rms_norm_backward(const View& dy, const View& x, const View& weight, const MutableView& dx,
                       const MutableView& dweight, double eps);

}  // namespace attend::reference
