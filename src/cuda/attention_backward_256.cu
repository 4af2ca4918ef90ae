// The backward kernels for head dims up to 256.
#include "cuda/attention_backward_kernels.cuh"

ATTEND_BACKWARD_KERNELS(bf16, Bf16, 256)
ATTEND_BACKWARD_KERNELS(f16, Half, 256)
