// The demo's check: sampled rows of the output against the double-precision reference.
#pragma once

#include "inputs.hpp"

namespace attend::cli {

struct CheckResult {
  std::int64_t rows = 0;
  double error = 0;    // the largest
  double allowed = 0;  // the bound, where the error comes closest to it
  double ratio = 0;    // error / bound there; not above 1 if the check is passed
  bool passed = true;  // every element of every row
};

// Computes rows of every head once more, in double, and holds each element to its bound: 8 eps (1 + max|s|) sum p|v|
// for f32, one rounding of the result on top for f16 and bf16, and one of each weight where
// the kernels round them.
CheckResult check_rows(const Problem& problem, const Inputs& inputs, const Tensor& out);

}  // namespace attend::cli
