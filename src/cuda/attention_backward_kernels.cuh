// The backward kernels of one class of head dims, by the names that the host asks for.
#pragma once

#include "cuda/attention_backward.cuh"
#include "cuda/backward_shapes.hpp"

namespace attend::cuda {

template <class T, BackwardShape S, bool kTerms, bool kBits = false>
struct BackwardTraitsOf : BackwardTraits<T, S, kTerms, kBits> {
  static_assert(BackwardTraitsOf::BackwardTraits::shared_bytes == attend::cuda::shared_bytes(S));
};

}  // namespace attend::cuda

#define ATTEND_BACKWARD_KERNEL(NAME, ...)                                                                  \
  extern "C" __global__ void __launch_bounds__((attend::cuda::BackwardTraitsOf<__VA_ARGS__>::kThreads), 1) \
      NAME(const __grid_constant__ attend::cuda::BackwardArgs a) {                                         \
    attend::cuda::attention_backward<attend::cuda::BackwardTraitsOf<__VA_ARGS__>>(a);                      \
  }
#define ATTEND_BACKWARD_KERNELS(NAME, T, D)                                                                    \
  ATTEND_BACKWARD_KERNEL(backward_plain_##D##_##NAME, attend::cuda::T, attend::cuda::kBackwardPlain##D, false) \
  ATTEND_BACKWARD_KERNEL(backward_terms_##D##_##NAME, attend::cuda::T, attend::cuda::kBackwardTerms##D, true)
// Up to 128 dims a mask's holes have a kernel without terms.
#define ATTEND_BACKWARD_HOLES(NAME, T, D)                                                                             \
  ATTEND_BACKWARD_KERNEL(backward_holes_##D##_##NAME, attend::cuda::T, attend::cuda::kBackwardTerms##D, false, true)
