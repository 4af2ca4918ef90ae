// Reformer's attention by its definition, in double, over views of any dtype.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "attend/reformer.hpp"

namespace attend::reference {

// Arguments must have been checked.

// [rounds, B, H, L]. rotations as reformer_rotations() gives them.
std::vector<std::int32_t> reformer_hashes(const View& q, const View& rotations,
                                          const std::vector<std::int64_t>& factors);

// In how many rounds i meets j, [L, L], for one head.
std::vector<std::int32_t> reformer_meetings(const std::vector<std::int32_t>& hashes, std::int64_t b, std::int64_t h,
                                            const Shape& q, const ReformerOptions& options);

void reformer(const View& q, const View& v, const std::vector<std::int32_t>& hashes, const MutableView& out,
              const ReformerOptions& options, const std::optional<MutableView>& lse);
// Everything is computed anew from the inputs.
void reformer_backward(const View& dout, const View& q, const View& v, const std::vector<std::int32_t>& hashes,
                       const ReformerGradients& gradients, const ReformerOptions& options);

}  // namespace attend::reference
