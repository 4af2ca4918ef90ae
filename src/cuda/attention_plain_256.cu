// The plain forward kernels for head dims up to 256.
#include "cuda/attention_plain.cuh"

ATTEND_PLAIN_KERNELS(bf16, Bf16, 256)
ATTEND_PLAIN_KERNELS(f16, Half, 256)
