// Attention as its formula says it: scalar, in double, one row at a time. What every kernel is tested against.
#pragma once

#include <cstdint>

#include "attend/attention.hpp"

namespace attend::reference {

// As attend::attention, but each view may have a dtype of its own. Arguments must have been checked.
void attention(View q, View k, View v, MutableView out, const AttentionOptions& options, const AttentionExtras& extras);

// As attend::attention_backward, but everything is computed anew from the inputs.
void attention_backward(View dout, View q, View k, View v, const AttentionGradients& gradients,
                        const AttentionOptions& options);

// Whether query i of M may see key j of N, in batch b and head h: the definition of every mask rule.
bool visible(const Mask& mask, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j, std::int64_t M,
             std::int64_t N);

// p(i): the key at which query i stands, where positions count as the mask's segments have them.
std::int64_t key_position(const Mask& mask, const Diagonal& diagonal, std::int64_t b, std::int64_t i, std::int64_t M,
                          std::int64_t N);

}  // namespace attend::reference
