// A step of training, whole and in parts.
#pragma once

#include <string>

#include "parts.hpp"

namespace attend::bench {

// A shape that `attend info` knows, or that of the model inside the library, with 8 rows of 512 tokens, in f32 and
// bf16: tokens and operations per second beside the ceiling, and where the time goes.
void run_training(const std::string& shape, int rounds, const Ceilings& ceilings);

// The same network, timed from outside, interleaved with another program: obeys lines on standard input, one line on
// standard output each. "f32 N" and "bf16 N": the seconds of N steps; "f32 loss" and "bf16 loss": the mean loss of the
// tokens before any step; "f32 operations": those of a step, by the usual count.
void serve_training(const std::string& shape);

}  // namespace attend::bench
