// The kernels for few rows, by the names that the host asks for.
#include "cuda/attention_decode.cuh"

ATTEND_DECODE_KERNEL(bf16, Bf16, 64)
ATTEND_DECODE_KERNEL(bf16, Bf16, 128)
ATTEND_DECODE_KERNEL(bf16, Bf16, 256)
ATTEND_DECODE_KERNEL(f16, Half, 64)
ATTEND_DECODE_KERNEL(f16, Half, 128)
ATTEND_DECODE_KERNEL(f16, Half, 256)
