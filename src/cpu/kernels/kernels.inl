// Every kernel once, for the instruction set whose simd header was included before. Lives in an anonymous namespace.
// clang-format off: each builds on those before it
#include "cpu/kernels/vector_math.inl"
#include "cpu/kernels/rows.inl"
#include "cpu/kernels/product.inl"
#include "cpu/kernels/scores.inl"
#include "cpu/kernels/attention_forward.inl"
#include "cpu/kernels/attention_backward.inl"
#include "cpu/kernels/matmul.inl"
#include "cpu/kernels/ceiling.inl"
// clang-format on

void exp2_row(const float* x, float* y, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, exp2(load(x + i)));
  for (; i < n; ++i) y[i] = exp2_one(x[i]);
}

constexpr KernelTable table(const char* name) {
  return {
      .name = name,
      .lanes = kLanes,
      .forward_scratch_bytes = forward_scratch_bytes,
      .forward = forward,
      .partial_floats = partial_floats,
      .merge_partials = merge_partials,
      .weights = weights,
      .backward_scratch_bytes = backward_scratch_bytes,
      .delta_rows = delta_rows,
      .backward_begin = backward_begin,
      .backward_rows = backward_rows,
      .backward_end = backward_end,
      .store_dq = store_dq,
      .bias_gradient = bias_gradient,
      .matmul_scratch_bytes = matmul_scratch_bytes,
      .matmul = matmul,
      .exp2 = exp2_row,
      .fma_burst = fma_burst,
  };
}
