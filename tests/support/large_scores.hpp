// Attention whose scores are large: its truth over scores as the engine holds them, and bounds that do not grow with
// them (docs/numerics.md, "Large scores").
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "attend/attention.hpp"

namespace attend::test {

// A problem whose q.k are exact in f32 in any order of summation, in every dtype.
struct LargeScores {
  std::int64_t B = 1, H = 2, Hk = 2, M = 7, N = 70, D = 32, E = 32;
  DType dtype = DType::f32;
  float scale = 0.125F;
  float softcap = 0;
  Mask mask{};
  std::vector<double> q, k, v, dout;  // contiguous
  std::vector<double> bias;           // [B, H, M, N] as its dtype holds it, or empty
  DType bias_dtype = DType::f32;
  std::vector<double> sinks;   // [H], or empty
  std::vector<double> slopes;  // of ALiBi, [H], or empty
  Dropout dropout{};
  std::string name;

  void draw(std::uint64_t seed);  // q, k, v, dout
};

struct LargeResults {
  std::vector<double> out, lse, weights, dq, dk, dv, dbias, dsinks;
};

// Values and how far a result may stand from each.
struct LargeTruth {
  LargeResults values, bounds;
};

LargeTruth large_truth(const LargeScores& p);
LargeResults large_compute(const LargeScores& p, bool weights = true);
// A text for each tensor with an element beyond its bound, or that is NaN.
std::vector<std::string> compare_large(const LargeScores& p, const LargeTruth& truth, const LargeResults& got);

}  // namespace attend::test
