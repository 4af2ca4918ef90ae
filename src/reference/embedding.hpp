// Rows of a table by their number, and the gradient of the table, in double, over views of any dtype.
#pragma once

#include <cstdint>
#include <span>

#include "attend/tensor.hpp"

namespace attend::reference {

void embedding(const View& table, std::span<const std::int64_t> tokens, const MutableView& y);
void embedding_backward(const View& dy, std::span<const std::int64_t> tokens, const MutableView& dtable);

}  // namespace attend::reference
