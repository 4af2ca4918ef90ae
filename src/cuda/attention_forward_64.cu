// The forward kernels for head dims up to 64.
#include "cuda/attention_forward_kernels.cuh"

ATTEND_FORWARD_KERNELS(bf16, Bf16, 64)
ATTEND_FORWARD_KERNELS(f16, Half, 64)
