// The kernels built for AVX2, FMA and F16C.
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
namespace isa_avx2 {
#include "cpu/isa/simd_avx2.h"
// products of bytes
#include "cpu/isa/integers_avx2.h"
constexpr int kDotRows = 3;
#include "cpu/isa/dots_by_pairs.h"
// the kernels
#include "cpu/kernels/kernels.inl"
constexpr KernelTable kTable = table("avx2");
}  // namespace isa_avx2
}  // namespace

const KernelTable& kernels_avx2() {
  return isa_avx2::kTable;
}

}  // namespace attend
