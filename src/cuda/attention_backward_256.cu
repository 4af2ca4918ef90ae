// The backward kernels for head dims up to 256.
#include "cuda/attention_backward_kernels.cuh"
#include "cuda/backward_queries.cuh"

ATTEND_BACKWARD_KERNELS(bf16, Bf16, 256)
ATTEND_BACKWARD_KERNELS(f16, Half, 256)
ATTEND_QUERIES_KERNEL(bf16, Bf16)
ATTEND_QUERIES_KERNEL(f16, Half)
