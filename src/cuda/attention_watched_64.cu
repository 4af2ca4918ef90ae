// The forward kernels with the statistics of rows for head dims up to 64.
#include "cuda/attention_forward_kernels.cuh"

ATTEND_WATCHED_KERNELS(bf16, Bf16, 64)
ATTEND_WATCHED_KERNELS(f16, Half, 64)
