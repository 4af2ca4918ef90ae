// A step of training, whole and in parts.
#pragma once

#include "parts.hpp"

namespace attend::bench {

// MiniMind2-small, 8 rows of 512 tokens, in f32 and bf16: tokens and operations per second beside the ceiling, and
// where the time goes.
void run_training(int rounds, const Ceilings& ceilings);

// The same network, timed from outside, interleaved with another program: obeys lines on standard input, one line on
// standard output each. "f32 N" and "bf16 N": the seconds of N steps; "f32 loss" and "bf16 loss": the mean loss of the
// tokens before any step.
void serve_training();

}  // namespace attend::bench
