// The backward kernels of one class of head dims, by the names that the host asks for.
#pragma once

#include "cuda/attention_backward.cuh"
#include "cuda/backward_shapes.hpp"

namespace attend::cuda {

template <class T, BackwardShape S, BackwardTerms kTerms, bool kBits = false>
struct BackwardTraitsOf : BackwardTraits<T, S, kTerms, kBits> {
  static_assert(BackwardTraitsOf::BackwardTraits::shared_bytes == attend::cuda::shared_bytes(S));
};

}  // namespace attend::cuda

#define ATTEND_BACKWARD_KERNEL(NAME, ...)                                                                  \
  extern "C" __global__ void __launch_bounds__((attend::cuda::BackwardTraitsOf<__VA_ARGS__>::kThreads), 1) \
      NAME(const __grid_constant__ attend::cuda::BackwardArgs a) {                                         \
    attend::cuda::attention_backward<attend::cuda::BackwardTraitsOf<__VA_ARGS__>>(a);                      \
  }
#define ATTEND_BACKWARD_KIND(NAME, KIND, T, D, SHAPE, ...)                                                   \
  ATTEND_BACKWARD_KERNEL(backward_##KIND##_##D##_##NAME, attend::cuda::T, attend::cuda::kBackward##SHAPE##D, \
                         attend::cuda::BackwardTerms::__VA_ARGS__)
#define ATTEND_BACKWARD_KERNELS(NAME, T, D)            \
  ATTEND_BACKWARD_KIND(NAME, plain, T, D, Plain, none) \
  ATTEND_BACKWARD_KIND(NAME, terms, T, D, Terms, all)
// Up to 128 dims a mask's holes have a kernel without terms, and so have ALiBi and the soft-cap alone.
#define ATTEND_BACKWARD_LIGHT(NAME, T, D)                    \
  ATTEND_BACKWARD_KIND(NAME, holes, T, D, Terms, none, true) \
  ATTEND_BACKWARD_KIND(NAME, alibi, T, D, Terms, alibi)      \
  ATTEND_BACKWARD_KIND(NAME, cap, T, D, Terms, cap)
