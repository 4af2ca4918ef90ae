// The kernels built for AVX-512 F, BW, DQ and VL.
#include <immintrin.h>

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
namespace isa_avx512 {
#include "cpu/isa/simd_avx512.h"
// products of bytes
#include "cpu/isa/integers_avx512.h"
constexpr int kDotRows = 4;
#include "cpu/isa/dots_by_pairs.h"
// the kernels
#include "cpu/kernels/kernels.inl"
constexpr KernelTable kTable = table("avx512");
}  // namespace isa_avx512
}  // namespace

const KernelTable& kernels_avx512() {
  return isa_avx512::kTable;
}

}  // namespace attend
