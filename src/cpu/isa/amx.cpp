// The kernels built for AVX-512 with BF16 and AMX tiles.
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
namespace isa_amx {
#include "cpu/isa/simd_avx512.h"
#include "cpu/isa/simd_avx512_bf16.h"
#include "cpu/isa/tiles_amx.h"
#define ATTEND_HAS_PAIRS
// products of bytes
#include "cpu/isa/integers_avx512.h"
// which come after them
#include "cpu/isa/dots_vnni.h"
// the kernels
#include "cpu/kernels/kernels.inl"
constexpr KernelTable kTable = table("amx");
}  // namespace isa_amx
}  // namespace

const KernelTable& kernels_amx() {
  return isa_amx::kTable;
}

}  // namespace attend
