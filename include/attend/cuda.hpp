// The same attention on an NVIDIA GPU: views of device memory, and a stream that the work is put on.
#pragma once

#include <string>

#include "attend/attention.hpp"
#include "attend/export.h"

namespace attend::cuda {

// Whether attention() below can run in this process: the library was built with nvcc, and there is a driver and a GPU
// that it has kernels for: Hopper's own for compute capability 9.0 (H100, H200), plain ones for 8.0 and all later.
// ATTEND_CUDA_KERNELS=plain, read at the first call, chooses these on Hopper as well.
ATTEND_API bool available();
// Why not, in a sentence; empty where available() is true.
ATTEND_API std::string why_not();

// A CUstream or cudaStream_t; null: the default stream. Its context is the calling thread's current one, or, where
// there is none, the first device's own.
using Stream = void*;

// As attend::attention, for views of device memory: bf16 and f16, D and E up to 256. So are the views in the options
// and extras, and the data of a dense mask. Returns once the work is on the stream. It allocates from a pool on the
// stream, waits for nothing and can be captured in a graph. What it cannot do throws InvalidArgument with its name:
// score rules, weights, row sums, f32 and f64, unions of masks, statistics together with dropout; the plain kernels also
// statistics, and D and E that are no multiples of 8.
// The bits of a row do not depend on the batch and the heads around it.
ATTEND_API void attention(View q, View k, View v, MutableView out, const AttentionOptions& options = {},
                          const AttentionExtras& extras = {}, Stream stream = nullptr);

// In which order the parts of dq are added: that of the keys, the same bits every time; or as they come. The plain
// kernels have one order.
enum class Order { fixed, free };

// As attend::attention_backward. Memory beyond the arguments is linear in M, fixed order included. The gradient
// of a bias where each score has an element of its own, in f32.
ATTEND_API void attention_backward(View dout, View q, View k, View v, View out, View lse,
                                   const AttentionGradients& gradients, const AttentionOptions& options = {},
                                   Order order = Order::fixed, Stream stream = nullptr);

}  // namespace attend::cuda
