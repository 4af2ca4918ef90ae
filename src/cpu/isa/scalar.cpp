// The kernels built for any machine.
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
namespace isa_scalar {
#include "cpu/isa/simd_scalar.h"
// products of bytes
#include "cpu/isa/dots_plain.h"
// the kernels
#include "cpu/kernels/kernels.inl"
constexpr KernelTable kTable = table("scalar");
}  // namespace isa_scalar
}  // namespace

const KernelTable& kernels_scalar() {
  return isa_scalar::kTable;
}

}  // namespace attend
