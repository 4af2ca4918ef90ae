// Linformer by its formula, in double, over views of any dtype.
#pragma once

#include <optional>

#include "attend/linformer.hpp"

namespace attend::reference {

// Arguments must have been checked. lse may have any dtype.
void linformer(const View& q, const View& k, const View& v, const View& e, const std::optional<View>& f,
               const MutableView& out, const LinformerOptions& options, const std::optional<MutableView>& lse);

// Everything is computed anew from the inputs.
void linformer_backward(const View& dout, const View& q, const View& k, const View& v, const View& e,
                        const std::optional<View>& f, const LinformerGradients& gradients,
                        const LinformerOptions& options);

}  // namespace attend::reference
