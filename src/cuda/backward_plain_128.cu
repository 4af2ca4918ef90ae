// The plain backward kernels for head dims up to 128.
#include "cuda/backward_plain.cuh"

ATTEND_PLAIN_BACKWARD_KERNELS(bf16, Bf16, 128)
ATTEND_PLAIN_BACKWARD_KERNELS(f16, Half, 128)
