// The backward kernels for head dims up to 128.
#include "cuda/attention_backward_kernels.cuh"

ATTEND_BACKWARD_KERNELS(bf16, Bf16, 128)
ATTEND_BACKWARD_KERNELS(f16, Half, 128)
ATTEND_BACKWARD_HOLES(bf16, Bf16, 128)
ATTEND_BACKWARD_HOLES(f16, Half, 128)
