// The loss of a language model: cross-entropy fused with the projection to the vocabulary.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "attend/export.h"
#include "attend/tensor.hpp"

namespace attend {

struct CrossEntropyOptions {
  std::int64_t ignore_index = -100;  // rows with this target have no loss and no gradient, whatever they hold
};

// Row n of `hidden` [B, H, L, width], counted over [batch, heads, length], has the logits z = weight . row, weight
// [1, 1, vocabulary, width], and loss[n] = log(sum of exp z) - z[targets[n]], 0 for rows that are ignored. loss is
// [B, H, L, 1], f32 (f64 for f64). Logits are made for some rows at a time, at most 32 MiB of them (or one row), and
// never stored. InvalidArgument for a target outside the vocabulary.
ATTEND_API void cross_entropy(View hidden, View weight, std::span<const std::int64_t> targets, MutableView loss,
                              const CrossEntropyOptions& options = {});

struct CrossEntropyGradients {
  std::optional<MutableView> dhidden{};
  std::optional<MutableView> dweight{};  // summed in f32; where it is not f32 itself, in a copy of its size
  std::optional<MutableView> loss{};     // as cross_entropy has it, at no cost: the logits are made anyway
};
// The gradients of the sum of dloss[n] * loss[n], dloss [B, H, L, 1], f32 (f64 for f64): three products in all. Those
// of the logits are rounded to bf16 beside bf16 inputs, which are multiplied as pairs where the CPU can. Overwrites
// what is asked for; dhidden and dweight may be f32 beside half types.
ATTEND_API void cross_entropy_backward(View dloss, View hidden, View weight, std::span<const std::int64_t> targets,
                                       const CrossEntropyGradients& gradients, const CrossEntropyOptions& options = {});

}  // namespace attend
