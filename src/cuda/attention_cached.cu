// The kernels for few rows over caches, by the names that the host asks for.
#include "cuda/attention_decode.cuh"
#include "cuda/cache_cursor.cuh"

#define ATTEND_CACHED_KERNEL(NAME, T, STORED, SHAPE, D)                              \
  extern "C" __global__ void __launch_bounds__(32 * attend::cuda::SHAPE##D.warps, 1) \
      cached_##D##_##NAME(const __grid_constant__ attend::cuda::CacheArgs a) {       \
    using namespace attend::cuda;                                                    \
    using Cursor = CacheCursor<SHAPE##D.warps, SHAPE##D.keys>;                       \
    attention_decode<DecodeTraits<T, STORED, SHAPE##D, Cursor>>(a);                  \
  }
#define ATTEND_CACHED_KERNELS(NAME, T, STORED, SHAPE) \
  ATTEND_CACHED_KERNEL(NAME, T, STORED, SHAPE, 64)    \
  ATTEND_CACHED_KERNEL(NAME, T, STORED, SHAPE, 128)   \
  ATTEND_CACHED_KERNEL(NAME, T, STORED, SHAPE, 256)

ATTEND_CACHED_KERNELS(bf16, Bf16, Bf16, kDecode)
ATTEND_CACHED_KERNELS(f16, Half, Half, kDecode)
ATTEND_CACHED_KERNELS(int8, Bf16, Int8, kNarrow)
ATTEND_CACHED_KERNELS(fp8, Bf16, Fp8, kNarrow)
