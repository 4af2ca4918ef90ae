// The naive method: every score and weight written out, in the precision of a dtype. In double it is the truth that
// bounds are measured from (a test pins it to src/reference, which is too slow for the long cases).
#pragma once

#include <vector>

#include "attend/tensor.hpp"
#include "support/problem.hpp"

namespace attend::test {

// Contiguous, in the shapes of the operation. What was not asked for is empty.
struct Results {
  std::vector<double> out, lse, weights;
  std::vector<double> dq, dk, dv, dbias, dsinks;
};

// How large the terms were that an element was summed from: what roundings are measured by (see docs/numerics.md).
struct Magnitudes {
  std::vector<double> score;     // [B, H, M]: 1 + the largest visible |s|
  std::vector<double> weighted;  // [B, H, M, E]: sum of p |v|
  std::vector<double> out;       // [B, H, M, E]
  // Of one rounding of scores, weights and sums / of one rounding of the output that backward reads.
  std::vector<double> dq, dq_delta;          // [B, H, M]
  std::vector<double> dk, dk_delta;          // [B, Hk, N]
  std::vector<double> dv;                    // [B, Hk, N]
  std::vector<double> dbias, dbias_delta;    // the shape of the bias
  std::vector<double> dsinks, dsinks_delta;  // [H]
};

// dtype f32: three-pass softmax in float. bf16 and f16: scores summed in f32 and rounded to the dtype, softmax in
// f32, weights rounded, outputs summed in f32 and rounded; backward alike. f64: all in double.
// Backward runs when the case asks for it; weights are kept on request.
Results naive_attention(const Problem& problem, DType dtype, bool weights = false);

struct Truth {
  Results results;
  Magnitudes magnitudes;
};
Truth true_attention(const Problem& problem, bool weights = false);

}  // namespace attend::test
