// Dropout of a tensor by its definition, in double, over views of any dtype.
#pragma once

#include "attend/dropout.hpp"

namespace attend::reference {

void dropout(const View& x, const MutableView& y, const Dropout& options);

}  // namespace attend::reference
