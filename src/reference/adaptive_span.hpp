// Adaptive span by its formula, in double, over views of any dtype.
#pragma once

#include <optional>

#include "attend/adaptive_span.hpp"

namespace attend::reference {

// Arguments must have been checked.
void adaptive_span(const View& q, const View& k, const View& v, const View& span, const MutableView& out,
                   const AdaptiveSpanOptions& options, const std::optional<MutableView>& lse);

// Everything is computed anew from the inputs.
void adaptive_span_backward(const View& dout, const View& q, const View& k, const View& v, const View& span,
                            const AdaptiveSpanGradients& gradients, const AdaptiveSpanOptions& options);

}  // namespace attend::reference
