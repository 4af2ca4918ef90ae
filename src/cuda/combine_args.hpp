// What a launch of the kernel that joins parts of the keys is given, as plain data.
#pragma once

#include "cuda/forward_args.hpp"

namespace attend::cuda {

struct CombineArgs {
  const float* partial_out = nullptr;  // [splits][B][H][M][row_floats]
  const float* partial_lse = nullptr;  // [splits][B][H][M]
  int splits = 0, B = 0, H = 0, M = 0, E = 0, row_floats = 0;
  DeviceOperand sinks;
  DeviceOperand out;  // written
  float* lse = nullptr;
  std::int64_t lse_batch_stride = 0, lse_head_stride = 0, lse_row_stride = 0;
};

}  // namespace attend::cuda
