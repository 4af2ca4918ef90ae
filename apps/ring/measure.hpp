// What attend_ring runs: attention or the layer over the ring, timed, and compared with one process.
#pragma once

#include <cstdint>
#include <string>

#include "attend/ring.hpp"

namespace attend::ring_app {

struct Settings {
  std::int64_t batch = 1, length = 4096, heads = 8, kv_heads = 0, dim = 64, window = 0;
  std::string dtype = "f32", progress = "auto";
  bool causal = false, zigzag = false, forward_only = false, layer = false, check = false;
  int repeat = 3, threads = 0;
  double timeout = 20, slice_work = RingOptions{}.slice_work;
  int kill_rank = -1, throw_rank = -1, stop_rank = -1;
};

// On every rank; rank 0 prints. False if a check failed.
bool measure(const Settings& settings);

}  // namespace attend::ring_app
