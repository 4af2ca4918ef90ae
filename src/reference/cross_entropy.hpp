// Cross-entropy over the logits of a projection by its formula, in double, over views of any dtype.
#pragma once

#include <cstdint>
#include <span>

#include "attend/cross_entropy.hpp"

namespace attend::reference {

void cross_entropy(const View& hidden, const View& weight, std::span<const std::int64_t> targets,
                   const MutableView& loss, const CrossEntropyOptions& options);
void cross_entropy_backward(const View& dloss, const View& hidden, const View& weight,
                            std::span<const std::int64_t> targets, const CrossEntropyGradients& gradients,
                            const CrossEntropyOptions& options);

}  // namespace attend::reference
