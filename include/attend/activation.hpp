// The activations of feed-forward networks, plain and gated.
#pragma once

#include <cstdint>
#include <optional>

#include "attend/export.h"
#include "attend/tensor.hpp"

namespace attend {

enum class Activation : std::int32_t {
  silu = 0,       // x / (1 + e^-x)
  gelu = 1,       // x * Phi(x), Phi the normal distribution: by the error function
  gelu_tanh = 2,  // x / (1 + e^-2u), u = sqrt(2 / pi) * (x + 0.044715 x^3): x (1 + tanh u) / 2
  relu = 3,       // max(x, 0)
};

// y = act(x). y may be x. At -inf the limit is taken: 0.
ATTEND_API void activation(Activation kind, View x, MutableView y);
// dx = dy * act'(x). dx may be dy. The slope of relu at 0 is 0.
ATTEND_API void activation_backward(Activation kind, View dy, View x, MutableView dx);

// y = act(gate) * up. y may be gate or up.
ATTEND_API void gated_activation(Activation kind, View gate, View up, MutableView y);
// dgate = dy * up * act'(gate), dup = dy * act(gate). One of them may be dy. With y, act(gate) * up again: for who did
// not keep it.
ATTEND_API void gated_activation_backward(Activation kind, View dy, View gate, View up, MutableView dgate,
                                          MutableView dup, std::optional<MutableView> y = std::nullopt);

}  // namespace attend
