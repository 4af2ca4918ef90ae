// What the lens does before and after its main kernel: each query's numbers; the pieces of cells to cells.
#include "cuda/lens_args.hpp"
#include "cuda/row_softmax.cuh"

using namespace attend::cuda;

// A thread for each query.
extern "C" __global__ void __launch_bounds__(256) lens_queries(const __grid_constant__ LensArgs a) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= a.padded) return;
  float lse2 = INFINITY, position = 0;
  Interval seen{0, 0};
  if (i < a.M) {
    lse2 = load_float(a.lse, a.b * a.lse.batch_stride + a.h * a.lse.head_stride + i * a.lse.row_stride) * kLog2E;
    if (lse2 == -INFINITY) lse2 = INFINITY;  // nothing is seen: all weights are 0
    seen = seen_in(a.mask, a.b, i);
    position = row_slope(a.mask, a.terms, {a.b, a.h, i}).position;
  }
  a.lse2[i] = lse2, a.position[i] = position;
  if (a.top) a.top[i] = 0;
  a.seen[i] = make_int2(seen.lo, smaller(seen.hi, a.N));
}

namespace {

template <class T>
__device__ __forceinline__ void lens_tops(const LensArgs& a) {
  each_large_row<T>(
      a, a.M, [&](std::int64_t i) { return RowPlace{a.b, a.h, static_cast<int>(i)}; }, [&](int) { return a.hk; },
      [&](const RowPlace& row, const float2& softmax) { a.top[row.i] = softmax.x, a.lse2[row.i] = softmax.y; });
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256) lens_tops_bf16(const __grid_constant__ LensArgs a) {
  lens_tops<Bf16>(a);
}
extern "C" __global__ void __launch_bounds__(256) lens_tops_f16(const __grid_constant__ LensArgs a) {
  lens_tops<Half>(a);
}

// A cell for each thread, or for each warp where it has many pieces: in their order, or every lane its own and the
// lanes' sums as a tree.
extern "C" __global__ void __launch_bounds__(256) lens_cells(const __grid_constant__ LensArgs a) {
  const std::int64_t thread = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x, at = thread / a.lanes;
  const int lane = static_cast<int>(thread % a.lanes);
  const int row = a.first_row + static_cast<int>(at / a.keys.cells), cell = static_cast<int>(at % a.keys.cells);
  if (row >= a.end_row) return;  // whole warps, where a cell has one
  const int first_part = a.queries.begin(row) / a.part_queries,
            parts = (a.queries.begin(row + 1) - 1) / a.part_queries - first_part + 1;
  const int first_warp = a.keys.begin(cell) / kLensKeys,
            warps = (a.keys.begin(cell + 1) - 1) / kLensKeys - first_warp + 1;
  float mass = 0, peak = 0;
  for (int part = 0; part < parts; ++part) {
    const float2* const pieces =
        a.pieces + a.query_piece(row, first_part + part) * a.row_pieces + a.key_piece(cell, first_warp);
    float sum = 0;
    for (int n = lane; n < warps; n += a.lanes) sum += pieces[n].x, peak = fmaxf(peak, pieces[n].y);
    mass += sum;
  }
  if (a.lanes > 1)
    for (int n = 16; n; n /= 2)
      mass += __shfl_xor_sync(~0U, mass, n), peak = fmaxf(peak, __shfl_xor_sync(~0U, peak, n));
  if (lane != 0) return;
  store_float(a.mass, row * a.mass.row_stride + cell * a.mass.dim_stride, mass);
  if (a.peak.data) store_float(a.peak, row * a.peak.row_stride + cell * a.peak.dim_stride, mass != mass ? mass : peak);
}
