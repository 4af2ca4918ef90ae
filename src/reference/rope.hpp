// Rotary position embedding by its formula, in double, over views of any dtype.
#pragma once

#include "attend/rope.hpp"
#include "attend/tensor.hpp"

namespace attend::reference {

void rope(const View& x, const MutableView& y, const RopeOptions& options);
void rope_backward(const View& dy, const MutableView& dx, const RopeOptions& options);
void rope(const View& x, const MutableView& y, const RopeTable& table, std::int64_t first);
void rope_backward(const View& dy, const MutableView& dx, const RopeTable& table, std::int64_t first);

}  // namespace attend::reference
