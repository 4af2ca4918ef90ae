// The bounds every result must keep, element by element (docs/numerics.md says where they come from).
#pragma once

#include <string>
#include <vector>

#include "support/naive.hpp"

namespace attend::test {

// What a kernel gave, contiguous, as read from its own dtypes.
struct Computed {
  DType dtype = DType::f32;
  std::vector<double> out, lse;
  std::vector<double> dq, dk, dv, dbias, dsinks;
};

// A text for each tensor with an element beyond its bound: where, what was got and expected, the bound, how many.
// Tensors that `computed` lacks are not compared.
std::vector<std::string> compare(const Problem& problem, const Truth& truth, const Results& naive,
                                 const Computed& computed);

// dbias and dsinks next to bf16 or f16 inputs, against the bounds of f32: they are stored in f32. `naive_f32` is the
// naive method in f32.
std::vector<std::string> compare_wide_gradients(const Problem& problem, const Truth& truth, const Results& naive_f32,
                                                const Computed& computed);

// Half of the distance between the numbers of `dtype` around `value`.
double half_ulp(DType dtype, double value);
// The unit roundoff of the arithmetic a dtype is computed in: 2^-24, for f64 2^-53.
double unit_roundoff(DType dtype);

}  // namespace attend::test
