// The kernels of one class of head dims, by the names that the host asks for.
#pragma once

#include "cuda/attention_forward.cuh"
#include "cuda/forward_shapes.hpp"

namespace attend::cuda {

template <class T, ForwardShape S, bool kTerms, bool kBits, bool kWatch = false, bool kAllTerms = true>
struct TraitsOf : ForwardTraits<T, S.D, S.D, S.keys, S.groups, S.stages, S.query_stages, S.hold_query, kTerms, kBits,
                                kWatch, kAllTerms> {
  static_assert(TraitsOf::ForwardTraits::shared_bytes == attend::cuda::shared_bytes(S, kWatch));
};

}  // namespace attend::cuda

#define ATTEND_FORWARD_KERNEL(NAME, ...)                                                           \
  extern "C" __global__ void __launch_bounds__((attend::cuda::TraitsOf<__VA_ARGS__>::kThreads), 1) \
      NAME(const __grid_constant__ attend::cuda::ForwardArgs a) {                                  \
    attend::cuda::attention_forward<attend::cuda::TraitsOf<__VA_ARGS__>>(a);                       \
  }
#define ATTEND_FORWARD_KERNELS(NAME, T, D)                                                                  \
  ATTEND_FORWARD_KERNEL(forward_plain_##D##_##NAME, attend::cuda::T, attend::cuda::kPlain##D, false, false) \
  ATTEND_FORWARD_KERNEL(forward_terms_##D##_##NAME, attend::cuda::T, attend::cuda::kTerms##D, true, false)  \
  ATTEND_FORWARD_KERNEL(forward_light_##D##_##NAME, attend::cuda::T, attend::cuda::kTerms##D, true, false,  \
                        false, false)                                                                       \
  ATTEND_FORWARD_KERNEL(forward_bits_##D##_##NAME, attend::cuda::T, attend::cuda::kTerms##D, true, true)    \
  ATTEND_FORWARD_KERNEL(forward_holes_##D##_##NAME, attend::cuda::T, attend::cuda::kTerms##D, false, true)  \
  ATTEND_FORWARD_KERNEL(forward_few_##D##_##NAME, attend::cuda::T, attend::cuda::kFew##D, false, false)     \
  ATTEND_FORWARD_KERNEL(forward_fewterms_##D##_##NAME, attend::cuda::T, attend::cuda::kFew##D, true, false)
// With the statistics of rows.
#define ATTEND_WATCHED(NAME, T, SHAPE, ...) \
  ATTEND_FORWARD_KERNEL(NAME, attend::cuda::T, attend::cuda::SHAPE, __VA_ARGS__, true)
#define ATTEND_WATCHED_KERNELS(NAME, T, D)                                     \
  ATTEND_WATCHED(watched_plain_##D##_##NAME, T, kWatched##D, false, false)     \
  ATTEND_WATCHED(watched_terms_##D##_##NAME, T, kWatchedTerms##D, true, false) \
  ATTEND_WATCHED(watched_bits_##D##_##NAME, T, kWatchedTerms##D, true, true)   \
  ATTEND_WATCHED(watched_few_##D##_##NAME, T, kFew##D, true, false)
