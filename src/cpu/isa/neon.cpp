// The kernels built for NEON.
#include <arm_neon.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/half.hpp"
#include "base/random.hpp"
#include "base/sum_terms.hpp"
#include "core/dropout.hpp"
#include "core/mask_plan.hpp"
#include "cpu/kernel_table.hpp"

namespace attend {
namespace {
namespace isa_neon {
#include "cpu/isa/simd_neon.h"
// products of bytes
#include "cpu/isa/dots_neon.h"
// the kernels
#include "cpu/kernels/kernels.inl"
constexpr KernelTable kTable = table("neon");
}  // namespace isa_neon
}  // namespace

const KernelTable& kernels_neon() {
  return isa_neon::kTable;
}

}  // namespace attend
