// Linear attention as its recurrence says it: scalar, in double, one token at a time.
#pragma once

#include <optional>

#include "attend/linear_attention.hpp"

namespace attend::reference {

// As in attend::, but each view may have a dtype of its own, and `state` is read and written where it is given.
// Arguments must have been checked. Backward keeps a state for every 64 tokens and for each of 64 tokens.
void linear_attention(View q, View k, View v, MutableView out, const LinearAttentionOptions& options,
                      const std::optional<MutableView>& final_state);
void linear_attention_backward(View dout, View q, View k, View v, const LinearAttentionGradients& gradients,
                               const LinearAttentionOptions& options, const std::optional<View>& dfinal_state);

}  // namespace attend::reference
