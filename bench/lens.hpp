// What it costs to look: statistics in the forward sweep, pooled maps, rows and zoom beside a plain forward pass.
#pragma once

namespace attend::bench {

void run_lens(int rounds);

}  // namespace attend::bench
