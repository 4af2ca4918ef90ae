// How the results of parts of the keys become one: one after another, in rising order, by the same arithmetic wherever
// it is done. A part's result is normalised, with its LSE beside it.
#pragma once

#include "cuda/score_terms.cuh"

namespace attend::cuda {

// What those so far, whose largest LSE is `before`, and the next part are multiplied by. `rest`: what its LSE lacks,
// where that is known.
struct FoldStep {
  float factor, weight;
};
template <class... Rest>
__device__ __forceinline__ FoldStep fold_step(float before, float lse, Rest... rest) {
  const float top = fmaxf(before, lse), base = top == -INFINITY ? 0.0F : top;
  return {exp2_fast((before - base) * kLog2E), exp2_fast(((lse - base) + ... + rest) * kLog2E)};
}
// The sum of weights begins with the sink, and so does the largest LSE.
__device__ __forceinline__ float fold_total(float sink) {
  return sink == -INFINITY ? 0.0F : 1.0F;
}
__device__ __forceinline__ float folded(float x, float part, const FoldStep& step) {
  return fmaf(step.weight, part, x * step.factor);
}
__device__ __forceinline__ float fold_inverse(float total) {
  return total == 0 ? 0.0F : 1.0F / total;
}
// The product is said to be one with the sum: else kernels could differ in which one the compiler takes.
__device__ __forceinline__ float fold_lse(float top, float total) {
  if (total > 0) return fmaf(__log2f(total), kLn2, top);
  return total == 0 ? -INFINITY : total;
}

// Whether one block of the kernel that made the parts had all of a KV head's, and has folded them.
__device__ __forceinline__ bool has_whole(const KeyParts& a, int head) {
  if (a.each == 0) return false;
  const auto block_of = [&](int item) {
    const int longer = a.more * (a.each + 1);
    return item < longer ? item / (a.each + 1) : a.more + (item - longer) / a.each;
  };
  return block_of(head * a.count) == block_of((head + 1) * a.count - 1);
}

}  // namespace attend::cuda
