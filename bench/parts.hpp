// What attention stands on, each beside its ceiling: matrix products, projections, decoding over caches, the cost of a
// call.
#pragma once

#include <functional>

namespace attend::bench {

struct Ceilings {
  std::function<double()> fma, pairs, read;  // operations or bytes per second
};

void run_parts(int rounds, const Ceilings& ceilings);
void run_latent(int rounds, const Ceilings& ceilings);  // of these, decoding over latents alone
void run_blocks(int rounds, const Ceilings& ceilings);  // and norms, rotations, activations and the loss alone

}  // namespace attend::bench
