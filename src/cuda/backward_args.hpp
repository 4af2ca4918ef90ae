// What a launch of the backward kernels is given, as plain data.
#pragma once

#include <vector_types.h>

#include "cuda/forward_args.hpp"

namespace attend::cuda {

// Each query's numbers, in rows padded to whole steps: [batch, head] or [batch], then query.
struct BackwardRows {
  float* lse2 = nullptr;      // [B, H, padded]: of base 2, beside `tops`; infinite where nothing is seen
  float* delta = nullptr;     // [B, H, padded]: sum of dout * out
  int2* seen = nullptr;       // [B, padded]: the keys from x up to y
  float* position = nullptr;  // [B, padded]: p(i), for ALiBi
  int2* blocks = nullptr;     // [B, steps]: the first and the last block of keys that a step's queries see
};

// Lanes for a row of the first kernel: each has two loads of 16 bytes in flight, of `out` and of its gradient.
constexpr int begin_lanes(int value_dim) {
  return value_dim <= 64 ? 4 : value_dim <= 128 ? 8 : 16;
}

struct BackwardArgs {
  CUtensorMap q, k, v, dout;  // dim, row, head, batch
  DeviceMask mask;
  ScoreTerms terms;
  BackwardRows rows;
  DeviceOperand out, dout_rows, lse;  // for the first kernel
  int by_eight = 0;                   // 1: out and dout can be read in eights of elements
  int dq_by_eight = 0;                // 1: dq can be written so
  DeviceOperand dq, dk, dv;           // written
  DeviceOperand dbias, dsinks, sinks;
  float* dq_sums = nullptr;  // [B, H, steps] tiles of step_queries x kD floats, in the order of the accumulators
  int* turns = nullptr;      // [B, H, steps]: how many blocks of keys have been added; null: in any order
  float scale = 1, scale2 = 1;
  SmallTanh cap;          // where there is a soft-cap,
  float inverse_cap = 0;  // and 1 / cap
  int B = 0, H = 0, Hk = 0, G = 1, M = 0, N = 0, D = 0, E = 0;
  int step_queries = 0, block_keys = 0;  // queries of a step, keys of an item
  int padded = 0, steps = 0, key_blocks = 0;
  int section = 1;        // KV heads that are worked on side by side
  int query_section = 1;  // query heads, where dQ has a kernel to itself
  int* counter = nullptr;
  DeviceOperand q_rows, k_rows;  // for row_softmax and the plain kernels, which use no maps
  DeviceOperand v_rows;          // for these
  KeyBits key_bits;              // for Hopper's; the mask's tiles are counted then
  float* tops = nullptr;  // with terms, [B, H, padded]: a row's largest logit if its LSE does not suffice, else 0
};

}  // namespace attend::cuda
