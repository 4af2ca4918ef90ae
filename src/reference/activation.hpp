// Activations by their formulas, in double, over views of any dtype.
#pragma once

#include <optional>

#include "attend/activation.hpp"

namespace attend::reference {

double activation(Activation kind, double x);
double activation_slope(Activation kind, double x);

// y = act(gate) (* up), and its gradients; dup is written where there is an up.
void activation(Activation kind, const View& gate, const std::optional<View>& up, const MutableView& y);
void activation_backward(Activation kind, const View& dy, const View& gate, const std::optional<View>& up,
                         const MutableView& dgate, const std::optional<MutableView>& dup);

}  // namespace attend::reference
