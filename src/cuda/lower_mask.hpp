// From the lowered mask of a call to the plain data that kernels are given.
#pragma once

#include <vector>

#include "core/mask_plan.hpp"
#include "cuda/device_mask.hpp"

namespace attend::cuda {

// The intervals of a plan; its lists are appended to `ints`. What it hides inside them is not looked at.
void lower_mask(const MaskPlan& plan, DeviceMask& mask, std::vector<int>& ints);
// The offsets of a diagonal.
PerBatch lower_offsets(const PositionPlan& position, std::vector<int>& ints);

}  // namespace attend::cuda
