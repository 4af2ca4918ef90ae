// Attention under a mask with a dilation, which costs what it shows: positions modulo the step fall into classes that
// do not see each other, and each class is attention over every step-th row.
#pragma once

#include "ops/attention_call.hpp"

namespace attend {

// Both return false, having done nothing, where the mask has no such part, the options need all scores in one place, or
// the problem is too small to be worth it.
bool attention_by_classes(const AttentionCall& call, const MutableView& out, const AttentionExtras& extras);
bool attention_backward_by_classes(const AttentionCall& call, const View& dout, const View& out, const View& lse,
                                   const AttentionGradients& gradients);

}  // namespace attend
