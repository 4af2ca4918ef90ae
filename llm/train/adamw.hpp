// AdamW: a step for all parameters of a network, and the schedule of its rate.
#pragma once

#include <cstdint>

#include "attend/tensor.hpp"
#include "llm/train/parameters.hpp"

namespace attend::llm {

struct AdamW {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double decay = 0.1;  // of matrices; norms and biases do not decay
};

// The running means of gradients and of their squares, as long as the parameters.
struct Moments {
  explicit Moments(const ParameterLayout& layout, DType dtype = DType::f32)
      : first(dtype, {1, 1, 1, layout.count()}), second(dtype, {1, 1, 1, layout.count()}) {}
  Tensor first, second;
};

// The length of the gradient as one vector; NaN or infinite where it holds such a number.
double gradient_norm(const ParameterLayout& layout, View gradients);

// Step number `step`, from 1 up, with gradients times `factor` (which clips them).
void adamw_step(const ParameterLayout& layout, const AdamW& options, double rate, std::int64_t step, View gradients,
                double factor, Moments& moments, MutableView parameters);

// Warms up in a straight line, then falls as a cosine to `last` times the rate at the last step.
struct Schedule {
  double rate = 5e-4, last = 0.1;
  std::int64_t warm_up = 0, steps = 1;
  double at(std::int64_t step) const;  // from 1 up
};

}  // namespace attend::llm
