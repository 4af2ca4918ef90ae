// The forward kernels for head dims up to 128.
#include "cuda/attention_forward_kernels.cuh"

ATTEND_FORWARD_KERNELS(bf16, Bf16, 128)
ATTEND_FORWARD_KERNELS(f16, Half, 128)
