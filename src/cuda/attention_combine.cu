// Joins the results of several parts of the keys that different blocks made, and the sink.
#include <type_traits>

#include "cuda/cache_cursor.cuh"

using namespace attend::cuda;

namespace {

// A row, by a warp: a lane has kEach neighbouring columns. What other blocks wrote is read past the L1, which may hold
// older lines of it.
template <int kEach>
__device__ __forceinline__ void join_parts(const KeyParts& a, int count, int b, int h, int i) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t rows = a.rows();
  const std::int64_t row = (static_cast<std::int64_t>(b) * a.H + h) * a.M + i;
  using Several = std::conditional_t<kEach == 2, float2, float4>;
  constexpr int kLoads = kEach * 4 / static_cast<int>(sizeof(Several)), kBatch = kEach > 4 ? 8 : 16;
  Several parts[kBatch][kLoads];
  const float* from = a.out + row * (32 * kEach) + lane * kEach;
  const auto load = [&](int first) {
#pragma unroll
    for (int s = 0; s < kBatch; ++s)
#pragma unroll
      for (int n = 0; n < kLoads; ++n)
        if (first + s < count)
          parts[s][n] = __ldcg(reinterpret_cast<const Several*>(from + (first + s) * rows * (32 * kEach)) + n);
  };
  load(0);  // before anything is waited for
  const float lse = lane < count ? __ldcg(a.lse + lane * rows + row) : -INFINITY;
  const float rest = lane < count && a.has_rest ? __ldcg(a.rest() + lane * rows + row) : 0.0F;
  const float sink = a.sinks.data ? load_float(a.sinks, h * a.sinks.head_stride) : -INFINITY;
  float top = fmaxf(lse, sink);  // of this part and all before it
  for (int n = 1; n < 32; n *= 2) {
    const float other = __shfl_up_sync(~0U, top, n);
    if (lane >= n) top = fmaxf(top, other);
  }
  const float before = __shfl_up_sync(~0U, top, 1);
  const FoldStep mine = fold_step(lane == 0 ? sink : before, lse, rest);
  float total = fold_total(sink), x[kEach] = {};
  for (int first = 0; first < count; first += kBatch) {
    if (first > 0) load(first);
#pragma unroll
    for (int s = 0; s < kBatch; ++s) {
      if (first + s >= count) break;
      const FoldStep step{__shfl_sync(~0U, mine.factor, first + s), __shfl_sync(~0U, mine.weight, first + s)};
      const auto* const columns = reinterpret_cast<const float*>(parts[s]);
      total = folded(total, 1.0F, step);
#pragma unroll
      for (int n = 0; n < kEach; ++n) x[n] = folded(x[n], columns[n], step);
    }
  }
  top = __shfl_sync(~0U, top, 31);
  const float inverse = fold_inverse(total);
  const std::int64_t to = b * a.joined.batch_stride + h * a.joined.head_stride + i * a.joined.row_stride;
#pragma unroll
  for (int n = 0; n < kEach; ++n)
    if (lane * kEach + n < a.E) store_float(a.joined, to + (lane * kEach + n) * a.joined.dim_stride, x[n] * inverse);
  if (lane == 0 && a.joined_lse)
    a.joined_lse[b * a.lse_batch_stride + h * a.lse_head_stride + i * a.lse_row_stride] = fold_lse(top, total);
}

// A row for each warp.
template <int kEach>
__device__ __forceinline__ void combine(const KeyParts& a) {
  const int row = static_cast<int>(blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32);
  const int head = row / a.M, b = head / a.H;
  const bool wanted = b < a.B && !has_whole(a, head / a.G);
  wait_for_kernel();  // every block: what comes after this kernel must not begin before the one before it is done
  if (wanted) join_parts<kEach>(a, a.count, b, head % a.H, row % a.M);
}
// The same of a cache, whose sequences have parts by their lengths.
template <int kEach>
__device__ __forceinline__ void combine_cached(const CacheParts& a) {
  const KeyParts& parts = a.parts;
  const int row = static_cast<int>(blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32);
  const int i = row % parts.M, h = row / parts.M % parts.H, b = row / parts.M / parts.H;
  const int hk = h / parts.G, group = (i * parts.G + h % parts.G) / kDecodeRows;
  const int count = b < parts.B ? cache_part_count(cached_length(a.lengths, b)) : 0;
  wait_for_kernel();
  if (b >= parts.B || __ldcg(a.lengths.folded + (b * (parts.H / parts.G) + hk) * a.lengths.groups + group)) return;
  join_parts<kEach>(parts, count, b, h, i);
}

template <class F>
__device__ __forceinline__ float of_warp(float x, F&& both) {
  for (int n = 16; n > 0; n /= 2) x = both(x, __shfl_xor_sync(~0U, x, n));
  return x;
}
__device__ __forceinline__ float sum_of_warp(float x) {
  return of_warp(x, [](float a, float b) { return a + b; });
}
__device__ __forceinline__ float largest_of_warp(float x) {
  return of_warp(x, [](float a, float b) { return fmaxf(a, b); });
}

// The statistics of a row from those of its parts, by a warp: a lane has a part.
__device__ __forceinline__ void join_statistics(const KeyParts& a, int b, int h, int i) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t rows = a.rows();
  const std::int64_t row = (static_cast<std::int64_t>(b) * a.H + h) * a.M + i;
  float part[kStatisticColumns] = {}, lse = -INFINITY, rest = 0;
  if (lane < a.count) {
    lse = a.lse[lane * rows + row], rest = a.rest()[lane * rows + row];
#pragma unroll
    for (int n = 0; n < kStatisticColumns; ++n) part[n] = a.statistics[(lane * rows + row) * kStatisticColumns + n];
  }
  const float sink = a.sinks.data ? load_float(a.sinks, h * a.sinks.head_stride) : -INFINITY;
  const float top = fmaxf(largest_of_warp(lse), sink), base = top == -INFINITY ? 0.0F : top;
  const float of_keys = sum_of_warp(exp2_fast((lse - base + rest) * kLog2E));
  const float total = of_keys + exp2_fast((sink - base) * kLog2E), log_share = lse - base + rest - __logf(total);
  const float share = lse == -INFINITY ? 0.0F : exp2_fast(log_share * kLog2E), inverse = 1.0F / sum_of_warp(share);
  const float entropy = part[1], mean = part[2], variance = part[3], maximum = part[11], argmax = part[12];
  float joined[kStatisticColumns];
  joined[0] = a.sinks.data ? sum_of_warp(share) : 1.0F;
  joined[1] = sum_of_warp(share > 0 ? share * (entropy - log_share) : 0.0F);
  joined[2] = sum_of_warp(share * mean) * inverse;
  joined[3] = sum_of_warp(share * fmaf(mean - joined[2], mean - joined[2], variance)) * inverse;
#pragma unroll
  for (int n = 4; n < 11; ++n) joined[n] = sum_of_warp(share * part[n]);
  joined[11] = largest_of_warp(share * maximum);
  joined[12] = -largest_of_warp(share * maximum == joined[11] ? -argmax : -INFINITY);  // the lowest key
  float* const to = static_cast<float*>(const_cast<void*>(a.joined_statistics.data)) +
                    b * a.joined_statistics.batch_stride + h * a.joined_statistics.head_stride +
                    i * a.joined_statistics.row_stride;
  if (lane != 0) return;
#pragma unroll
  for (int n = 0; n < kStatisticColumns; ++n)
    to[n * a.joined_statistics.dim_stride] = of_keys == 0 ? (n == 12 ? -1.0F : 0.0F) : joined[n];
}

}  // namespace

extern "C" __global__ void __launch_bounds__(128) attention_combine_64(const __grid_constant__ KeyParts a) {
  combine<2>(a);
}
extern "C" __global__ void __launch_bounds__(128) attention_combine_128(const __grid_constant__ KeyParts a) {
  combine<4>(a);
}
extern "C" __global__ void __launch_bounds__(128) attention_combine_256(const __grid_constant__ KeyParts a) {
  combine<8>(a);
}
extern "C" __global__ void __launch_bounds__(128) cache_combine_64(const __grid_constant__ CacheParts a) {
  combine_cached<2>(a);
}
extern "C" __global__ void __launch_bounds__(128) cache_combine_128(const __grid_constant__ CacheParts a) {
  combine_cached<4>(a);
}
extern "C" __global__ void __launch_bounds__(128) cache_combine_256(const __grid_constant__ CacheParts a) {
  combine_cached<8>(a);
}
extern "C" __global__ void __launch_bounds__(128) statistics_combine(const __grid_constant__ KeyParts a) {
  const int row = static_cast<int>(blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32), head = row / a.M;
  if (head / a.H < a.B) join_statistics(a, head / a.H, head % a.H, row % a.M);
}
