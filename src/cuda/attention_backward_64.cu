// The backward kernels for head dims up to 64.
#include "cuda/attention_backward_kernels.cuh"

ATTEND_BACKWARD_KERNELS(bf16, Bf16, 64)
ATTEND_BACKWARD_KERNELS(f16, Half, 64)
ATTEND_BACKWARD_LIGHT(bf16, Bf16, 64)
ATTEND_BACKWARD_LIGHT(f16, Half, 64)
