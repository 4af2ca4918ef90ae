// The kernels for few rows, by the names that the host asks for.
#include "cuda/attention_decode.cuh"

#define ATTEND_DECODE_KERNEL(NAME, T, D)                                                 \
  extern "C" __global__ void __launch_bounds__(32 * attend::cuda::kDecode##D.warps, 1)   \
      decode_##D##_##NAME(const __grid_constant__ attend::cuda::DecodeArgs a) {          \
    using namespace attend::cuda;                                                        \
    attention_decode<DecodeTraits<T, T, kDecode##D, DecodeCursor<kDecode##D.warps>>>(a); \
  }

ATTEND_DECODE_KERNEL(bf16, Bf16, 64)
ATTEND_DECODE_KERNEL(bf16, Bf16, 128)
ATTEND_DECODE_KERNEL(bf16, Bf16, 256)
ATTEND_DECODE_KERNEL(f16, Half, 64)
ATTEND_DECODE_KERNEL(f16, Half, 128)
ATTEND_DECODE_KERNEL(f16, Half, 256)
