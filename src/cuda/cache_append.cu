// Writes new keys and values behind those of a cache's sequences, in its format: a row for each warp.
#include "cuda/decode_args.hpp"
#include "cuda/score_terms.cuh"

using namespace attend::cuda;

namespace {

constexpr int kInt8 = 1, kFp8 = 2;  // CacheFormat

struct RowScale {
  float scale, inverse;
};
// That of a row made here. A row of nearly nothing is zeros; one that is not finite becomes NaN, as on the CPU.
__device__ __forceinline__ RowScale row_scale(float largest, bool finite, float most) {
  if (!finite) return {__int_as_float(0x7FFFFFFF), 0.0F};
  const float scale = largest / most;
  return scale > 1e-37F ? RowScale{scale, 1.0F / scale} : RowScale{0.0F, 0.0F};
}

__device__ __forceinline__ void append_row(const AppendArgs& a, bool values, int b, int hk, int t) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int at = larger(a.lengths[b], 0) + t;
  if (at < 0 || at >= a.most) return;
  const int page = a.table ? a.table[b * a.table_stride + at / a.page_tokens] : b;
  if (page < 0 || page >= a.pages) return;
  const int token = at % a.page_tokens, dim = values ? a.E : a.D;
  const DeviceOperand &from = values ? a.v : a.k, &to = values ? a.v_pages : a.k_pages;
  const DeviceOperand& scales = values ? a.v_scales : a.k_scales;
  const std::int64_t row = b * from.batch_stride + hk * from.head_stride + t * from.row_stride;
  const std::int64_t place = page * to.batch_stride + hk * to.head_stride + token * to.row_stride;
  const auto number = [&](int d) { return load_float(from, row + d * from.dim_stride); };
  if (a.format != kInt8 && a.format != kFp8) {
    for (int d = lane; d < dim; d += 32) store_float(to, place + d, number(d));
    return;
  }
  RowScale scale{1.0F, 1.0F};
  if (scales.data) {
    auto* const there = static_cast<float*>(const_cast<void*>(scales.data)) + page * scales.batch_stride +
                        hk * scales.head_stride + token * scales.row_stride;
    if (values ? a.own_v_scales : a.own_k_scales) {
      float largest = 0;
      bool finite = true;
      for (int d = lane; d < dim; d += 32) {
        largest = fmaxf(largest, fabsf(number(d)));
        finite = finite && number(d) - number(d) == 0.0F;
      }
      for (int n = 16; n > 0; n /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, n));
      scale = row_scale(largest, __all_sync(~0U, finite), a.format == kInt8 ? 127.0F : 448.0F);
      if (lane == 0) *there = scale.scale;
    } else {
      scale = {*there, *there == 0.0F ? 0.0F : 1.0F / *there};
    }
  }
  auto* const bytes = static_cast<std::uint8_t*>(const_cast<void*>(to.data)) + place;
  for (int d = lane; d < dim; d += 32) {
    const float x = scale.inverse == 0.0F ? 0.0F : number(d) * scale.inverse;
    bytes[d] = a.format == kInt8 ? static_cast<std::uint8_t>(__float2int_rn(fminf(fmaxf(x, -127.0F), 127.0F)))
                                 : static_cast<std::uint8_t>(pack_e4m3(x, 0.0F));
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(128) cache_append(const __grid_constant__ AppendArgs a) {
  const int row = static_cast<int>(blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32);
  const int t = row % a.tokens, hk = row / a.tokens % a.Hk, b = row / a.tokens / a.Hk % a.B;
  const int side = row / a.tokens / a.Hk / a.B;
  if (side < 2) append_row(a, side == 1, b, hk, t);
}
