// Rotary position embedding.
#pragma once

#include <cstdint>
#include <vector>

#include "attend/tensor.hpp"

namespace attend {

enum class RopeStyle {
  half_split,   // pairs (i, i + R/2): Llama, Qwen, MiniMind 2 and 3
  interleaved,  // pairs (2i, 2i + 1): MiniMind v1, GPT-J
};

struct RopeOptions {
  RopeStyle style = RopeStyle::half_split;
  double theta = 10000.0;
  std::int64_t rotary_dim = 0;            // R: the first R elements of each row turn, R even; 0 means all of dim
  std::vector<std::int64_t> positions{};  // of each row along length; empty: first_position, first_position + 1, ...
  std::int64_t first_position = 0;
};

// Turns pair i of the row at position p by the angle p * theta^(-2i/R). y may be x.
void rope(View x, MutableView y, const RopeOptions& options = {});

// The gradient is the turn backwards. dx may be dy.
void rope_backward(View dy, MutableView dx, const RopeOptions& options = {});

}  // namespace attend
