// Additive attention as its formula says it: scalar, in double, one row at a time.
#pragma once

#include <optional>

#include "attend/additive_attention.hpp"

namespace attend::reference {

// As attend::additive_attention, but each view may have a dtype of its own. Arguments must have been checked.
void additive_attention(const View& a, const View& b, const View& w, const View& v, const MutableView& out,
                        const AdditiveAttentionOptions& options, const std::optional<MutableView>& lse);

// Everything is computed anew from the inputs.
void additive_attention_backward(const View& dout, const View& a, const View& b, const View& w, const View& v,
                                 const AdditiveAttentionGradients& gradients, const AdditiveAttentionOptions& options);

}  // namespace attend::reference
