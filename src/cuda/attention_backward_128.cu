// The backward kernels for head dims up to 128.
#include "cuda/attention_backward_kernels.cuh"

ATTEND_BACKWARD_KERNELS(bf16, Bf16, 128)
ATTEND_BACKWARD_KERNELS(f16, Half, 128)
ATTEND_BACKWARD_LIGHT(bf16, Bf16, 128)
ATTEND_BACKWARD_LIGHT(f16, Half, 128)
