// Every kernel once, for the instruction set whose simd header was included before. Lives in an anonymous namespace.
// clang-format off: each builds on those before it
#include "cpu/kernels/vector_math.inl"
#include "cpu/kernels/rows.inl"
#include "cpu/kernels/product.inl"
#ifdef ATTEND_TILE_DOT
#include "cpu/kernels/tile_product.inl"
constexpr int kBlockRows = 32;  // rows whose scores are worked on at once
constexpr int kCutRows = 16;    // and where the mask cuts through them
// Columns of a block begin and end at multiples of this. A tile adds up 16 pairs of keys before they join the sum: which
// pairs these are must not depend on the rows of the block.
constexpr int kColumnStep = 2 * kTileSide;
#else
constexpr int kBlockRows = 48;
constexpr int kCutRows = 12;
constexpr int kColumnStep = kLanes;
#endif
#include "cpu/kernels/scores.inl"
#include "cpu/kernels/operands.inl"
#ifdef ATTEND_HAS_PAIRS
#include "cpu/kernels/pairs.inl"
#else
using Pairs = Floats;  // half types are widened
#endif
#ifdef ATTEND_TILE_DOT
#include "cpu/kernels/hi_lo.inl"
#else
using HiLo = Floats;  // three products of pairs would be slower than one of floats
#endif
#include "cpu/kernels/tiles.inl"
#include "cpu/kernels/statistics.inl"
#include "cpu/kernels/attention_forward.inl"
#include "cpu/kernels/lens.inl"
#include "cpu/kernels/row_states.inl"
#include "cpu/kernels/attention_backward.inl"
#include "cpu/kernels/matmul.inl"
#include "cpu/kernels/weight_rounding.inl"
#include "cpu/kernels/weight.inl"
#include "cpu/kernels/linear_attention.inl"
#include "cpu/kernels/additive.inl"
#include "cpu/kernels/rms_norm.inl"
#include "cpu/kernels/layer_norm.inl"
#include "cpu/kernels/activation.inl"
#include "cpu/kernels/add.inl"
#include "cpu/kernels/dropout.inl"
#include "cpu/kernels/rope.inl"
#include "cpu/kernels/cross_entropy.inl"
#include "cpu/kernels/ceiling.inl"
// clang-format on

template <class Math>
void exp2_row(const float* x, float* y, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, Math::power_of_two(load(x + i)));
  float last[kLanes];
  for (; i < n; ++i) {
    store(last, Math::power_of_two(set1(x[i])));
    y[i] = last[0];
  }
}

constexpr RowKernels row_kernels() {
  return {
      .load = [](DType dtype, const void* from, std::int64_t stride, std::int64_t n,
                 float* to) { load_row(dtype, static_cast<const char*>(from), stride, n, to); },
      .store = [](DType dtype, void* to, std::int64_t stride, std::int64_t n,
                  const float* from) { store_row(dtype, static_cast<char*>(to), stride, n, from, 1.0F); },
      .rms_norm = rms_norm_rows,
      .rms_norm_backward = rms_norm_backward_rows,
      .layer_norm = layer_norm_row,
      .layer_norm_backward = layer_norm_backward_row,
      .activation = activate,
      .activation_backward = activate_backward,
      .add = add_row,
      .accumulate = accumulate_row,
      .dropout = dropout_row,
      .rope = rope_rows,
      .exp_sum = exp_sum,
      .scaled_exp = scaled_exp,
  };
}

// bf16 is multiplied as pairs where the instruction set can and a row fills a vector of them; below that widening costs
// nothing and rounds less.
inline bool paired(DType dtype, std::int64_t D, std::int64_t E) {
  return dtype == DType::bf16 && D >= 2 * kLanes && E >= 2 * kLanes;
}
inline bool paired(const AttentionProblem& p) {
  return paired(p.q.dtype, p.D, p.E);
}
// Forward alone, and not over the pages of a cache, which are packed otherwise.
inline bool hi_lo(const AttentionProblem& p) {
  const bool wanted = p.split_bf16 && p.q.dtype != DType::bf16 && !(p.packed && p.packed->pages);
  return wanted && p.D >= 2 * kLanes && p.E >= 2 * kLanes;
}
// Calls f with the Math that this problem's forward pass works in.
template <class F>
inline auto with_forward_math(const AttentionProblem& p, F&& f) {
  if (paired(p)) return f(Pairs{});
  if (hi_lo(p)) return f(HiLo{});
  return f(Floats{});
}
inline bool paired(const CacheShape& shape) {
  return paired(shape.dtype, shape.D, shape.E);
}
inline bool paired(const MatmulProblem& p) {
  return p.a.dtype == DType::bf16 && p.b.dtype == DType::bf16;
}

// NOLINTBEGIN(misc-redundant-expression): where an instruction set has no products of pairs, Pairs are Floats.
constexpr KernelTable table(const char* name) {
  return {
      .name = name,
      .lanes = kLanes,
      .block_rows = kBlockRows,
      .forward_scratch_bytes =
          [](const AttentionProblem& p, std::int64_t rows) {
            const std::int64_t floats = forward_scratch_bytes_with<Floats>(p, rows);  // `weights` works in floats
            const std::int64_t own =
                with_forward_math(p, [&](auto math) { return forward_scratch_bytes_with<decltype(math)>(p, rows); });
            return floats > own ? floats : own;
          },
      .tile_bytes =
          [](const AttentionProblem& p) {
            return with_forward_math(p, [&](auto math) { return tile_bytes_with<decltype(math)>(p); });
          },
      .pack_tile =
          [](const AttentionProblem& p, const KeyTile& tile, char* dst, void* scratch) {
            with_forward_math(p, [&](auto math) { pack_tile_with<decltype(math)>(p, tile, dst, scratch); });
          },
      .forward =
          [](const AttentionProblem& p, const RowRange& range, std::int64_t first_split, std::int64_t last_split,
             float* partial, void* scratch) {
            with_forward_math(p, [&](auto math) {
              forward_with<decltype(math)>(p, range, first_split, last_split, partial, scratch);
            });
          },
      .cache_stored_as =
          [](const CacheShape& shape) {
            return (paired(shape) ? cache_stored_as_with<Pairs> : cache_stored_as_with<Floats>)(shape);
          },
      .cache_tile_bytes =
          [](const CacheShape& shape) {
            return (paired(shape) ? cache_tile_bytes_with<Pairs> : cache_tile_bytes_with<Floats>)(shape);
          },
      .cache_clear =
          [](const CacheShape& shape, char* tile) {
            (paired(shape) ? cache_clear_with<Pairs> : cache_clear_with<Floats>)(shape, tile);
          },
      .cache_write =
          [](const CacheShape& shape, const Operand& k, const Operand& v, std::int64_t hk, std::int64_t i,
             std::int64_t count, std::int64_t at, char* tile, float* row) {
            (paired(shape) ? cache_write_with<Pairs> : cache_write_with<Floats>)(shape, k, v, hk, i, count, at, tile,
                                                                                 row);
          },
      .cache_read =
          [](const CacheShape& shape, char* tile, std::int64_t at, float* k, float* v) {
            (paired(shape) ? cache_read_with<Pairs> : cache_read_with<Floats>)(shape, tile, at, k, v);
          },
      .partial_floats = partial_floats,
      .merge_partials = merge_partials,
      .weights = weights,
      .lens =
          [](const AttentionProblem& p, const RowRange& range, const LensSweep& sweep, void* scratch) {
            with_forward_math(p, [&](auto math) { lens_with<decltype(math)>(p, range, sweep, scratch); });
          },
      .row_states =
          [](const AttentionProblem& p, const RowRange& range, const float* lse, bool as_floats, RowState* states,
             void* scratch) {
            (paired(p) && !as_floats ? row_states_with<Pairs> : row_states_with<Floats>)(p, range, lse, states,
                                                                                         scratch);
          },
      .backward_tile_bytes =
          [](const AttentionProblem& p) {
            const std::int64_t floats = backward_tile_bytes_with<Floats>(p);  // bias_gradient works in floats
            const std::int64_t pairs = backward_tile_bytes_with<Pairs>(p);
            return floats > pairs ? floats : pairs;
          },
      .backward_scratch_bytes =
          [](const AttentionProblem& p, std::int64_t rows) {
            const std::int64_t floats = backward_scratch_bytes_with<Floats>(p, rows);
            const std::int64_t pairs = backward_scratch_bytes_with<Pairs>(p, rows);
            return floats > pairs ? floats : pairs;
          },
      .delta_rows = delta_rows,
      .backward_begin =
          [](const AttentionProblem& p, const KeyTile& keys, void* memory, void* scratch) {
            return (paired(p) ? backward_begin_with<Pairs> : backward_begin_with<Floats>)(p, keys, memory, scratch);
          },
      .backward_rows =
          [](const AttentionProblem& p, BackwardTile& tile, const RowRange& range, float* dq,
             const DistanceSums& distances, void* scratch) {
            (paired(p) ? backward_rows_with<Pairs> : backward_rows_with<Floats>)(p, tile, range, dq, distances,
                                                                                 scratch);
          },
      .backward_end = backward_end,
      .store_dq = store_dq,
      .bias_gradient = bias_gradient,
      .delta_sums = delta_sums,
      .matmul_scratch_bytes = matmul_scratch_bytes,
      .matmul_packed_bytes =
          [](const MatmulProblem& p) {
            return (paired(p) ? matmul_packed_bytes_with<Pairs> : matmul_packed_bytes_with<Floats>)(p);
          },
      .matmul_pack =
          [](const MatmulProblem& p, std::int64_t n0, char* dst, void* scratch) {
            (paired(p) ? matmul_pack_with<Pairs> : matmul_pack_with<Floats>)(p, n0, dst, scratch);
          },
      .matmul =
          [](const MatmulProblem& p, std::int64_t row, std::int64_t rows, std::int64_t n0, std::int64_t n1,
             const char* packed, void* scratch) {
            (paired(p) ? matmul_with<Pairs> : matmul_with<Floats>)(p, row, rows, n0, n1, packed, scratch);
          },
      .round_row = round_row,
      .weight_scratch_bytes = weight_scratch_bytes,
      .weight_product = weight_product,
      .linear_attention = linear_attention_kernels(),
      .rows = row_kernels(),
      .additive_exponents = additive_exponents,
      .additive_scores = additive_scores,
      .additive_gradients = additive_gradients,
      .exp2 = exp2_row<Floats>,
      .exp2_bf16 = exp2_row<Pairs>,
      .exp = exp_row,
      .fma_burst = fma_burst,
      .pair_burst = pair_burst,
      .byte_burst = byte_burst,
  };
}
// NOLINTEND(misc-redundant-expression)
