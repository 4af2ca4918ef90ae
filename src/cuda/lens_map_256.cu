// The kernels of pooled maps for head dims up to 256.
#include "cuda/lens_map.cuh"

ATTEND_LENS_KERNELS(bf16, Bf16, 256)
ATTEND_LENS_KERNELS(f16, Half, 256)
