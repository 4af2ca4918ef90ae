// Adam, for the small models of the labs.
#pragma once

#include <cstdint>
#include <span>

#include "attend/tensor.hpp"

namespace attend::labs {

// One step for all parameters, gradients clipped to a length of 1 together. `first` and `second` are as long as
// `parameters`, zeros at the start; `step` counts from 1. All f32.
void adam_step(std::span<Tensor* const> parameters, std::span<Tensor* const> gradients, std::span<Tensor> first,
               std::span<Tensor> second, std::int64_t step, double rate);

}  // namespace attend::labs
