// A gated recurrent unit over a batch: one step forward, one step back.
#pragma once

#include <cstdint>

#include "attend/tensor.hpp"

namespace attend::labs {

// r = sigmoid(gx_r + gh_r), z = sigmoid(gx_z + gh_z), n = tanh(gx_n + r gh_n), h' = (1 - z) n + z h.
// gx and gh are [B, 1, T, 3W] (r, z, n), states [B, 1, T + 1, W]: row t is the state before step t. `active`, [B]: rows
// whose text has ended keep their state. All of one dtype, f32 or f64, contiguous.
struct GruStep {
  const Tensor* gx;
  const Tensor* gh;
  const std::int64_t* lengths = nullptr;  // [B]: row b is active while t < lengths[b]; null: always
};
void gru_forward(const GruStep& step, std::int64_t t, Tensor& states);
// dstates row t + 1 is complete; writes dgx and dgh of step t and adds to dstates row t what does not go through gh.
void gru_backward(const GruStep& step, std::int64_t t, const Tensor& states, Tensor& dstates, Tensor& dgx, Tensor& dgh);

}  // namespace attend::labs
