// The C ABI of attention on an NVIDIA GPU.
#include "attend/cuda.hpp"

#include "abi/abi.hpp"
#include "attend/attend_cuda.h"

using namespace attend::abi;

namespace {

attend::cuda::CachePages pages_of(const char* op, const char* what, const attend_cuda_pages& given) {
  check_strides_given(op, what, given.shape, given.strides, "set them, in elements; the last is 1");
  const auto& size = given.shape;
  const auto& step = given.strides;
  return {given.data,
          {size[0], size[1], size[2], size[3]},
          {step[0], step[1], step[2], step[3]},
          optional_mutable_view(op, "scales", given.scales)};
}

attend::cuda::CacheView cache_of(const char* op, const attend_cuda_cache* cache) {
  const attend_cuda_cache given = read_struct(op, "attend_cuda_cache", require(op, "cache", cache), {});
  if (given.format < ATTEND_CUDA_CACHE_PLAIN || given.format > ATTEND_CUDA_CACHE_FP8)
    attend::fail(op, "the format of a cache is " + std::to_string(given.format) +
                         ", expected ATTEND_CUDA_CACHE_PLAIN, _INT8 or _FP8 (0-2)");
  return {static_cast<attend::cuda::CacheFormat>(given.format),
          pages_of(op, "k", given.k),
          pages_of(op, "v", given.v),
          given.lengths,
          given.table,
          given.table_pages,
          given.table_stride};
}

}  // namespace

void attend_cuda_cache_init_sized(attend_cuda_cache* cache, size_t size) {
  write_struct(cache, size, {});
}

int32_t attend_cuda_available() {
  int32_t result = 0;
  guard([&] { result = attend::cuda::available() ? 1 : 0; });
  return result;
}

const char* attend_cuda_why_not() {
  thread_local std::string text;
  const attend_status status = guard([&] { text = attend::cuda::why_not(); });
  return status == ATTEND_OK ? text.c_str() : attend_last_error();
}

attend_status attend_cuda_attention(const attend_tensor* q, const attend_tensor* k, const attend_tensor* v,
                                    const attend_tensor* out, const attend_attention_options* options,
                                    const attend_tensor* lse, const attend_row_statistics* statistics, void* stream) {
  return guard([&] {
    const char* op = "attend_cuda_attention";
    const attend::View q_view = view(op, "q", q);
    attend::AttentionExtras extras{.lse = optional_mutable_view(op, "lse", lse)};
    if (statistics != nullptr) extras.statistics = statistics_of(op, statistics);
    attend::cuda::attention(q_view, view(op, "k", k), view(op, "v", v), mutable_view(op, "out", out),
                            options_of(op, options, q->dtype, false), extras, stream);
  });
}

attend_status attend_cuda_attention_backward(const attend_tensor* dout, const attend_tensor* q, const attend_tensor* k,
                                             const attend_tensor* v, const attend_tensor* out, const attend_tensor* lse,
                                             const attend_attention_gradients* gradients,
                                             const attend_attention_options* options, int32_t order, void* stream) {
  return guard([&] {
    const char* op = "attend_cuda_attention_backward";
    if (order != ATTEND_CUDA_ORDER_FIXED && order != ATTEND_CUDA_ORDER_FREE)
      attend::fail(op, "order is " + std::to_string(order) +
                           ", expected ATTEND_CUDA_ORDER_FIXED (0) or ATTEND_CUDA_ORDER_FREE (1)");
    const attend::AttentionGradients to = gradients_of(op, gradients);
    const attend::View q_view = view(op, "q", q);
    attend::cuda::attention_backward(
        view(op, "dout", dout), q_view, view(op, "k", k), view(op, "v", v), view(op, "out", out), view(op, "lse", lse),
        to, options_of(op, options, q->dtype, true), static_cast<attend::cuda::Order>(order), stream);
  });
}

attend_status attend_cuda_map(const attend_tensor* q, const attend_tensor* k, const attend_tensor* lse, int64_t batch,
                              int64_t head, const attend_lens_area* area, const attend_tensor* mass,
                              const attend_tensor* peak, const attend_attention_options* options, void* stream) {
  return guard([&] {
    const char* op = "attend_cuda_map";
    const attend::View q_view = view(op, "q", q);
    attend::cuda::map(q_view, view(op, "k", k), view(op, "lse", lse), {batch, head},
                      {area_of(area), mutable_view(op, "mass", mass), optional_mutable_view(op, "peak", peak)},
                      options_of(op, options, q->dtype, false), stream);
  });
}

attend_status attend_cuda_working_bytes(const attend_tensor* q, const attend_cuda_cache* cache, int64_t* bytes) {
  return guard([&] {
    const char* op = "attend_cuda_working_bytes";
    int64_t& needed = require(op, "bytes", bytes);
    needed = attend::cuda::working_bytes(view(op, "q", q), cache_of(op, cache));
  });
}

attend_status attend_cuda_cached_attention(const attend_tensor* q, const attend_cuda_cache* cache,
                                           const attend_tensor* out, const attend_attention_options* options,
                                           const attend_tensor* lse, void* memory, int64_t bytes, void* stream) {
  return guard([&] {
    const char* op = "attend_cuda_cached_attention";
    const attend::View q_view = view(op, "q", q);
    attend::cuda::attention(q_view, cache_of(op, cache), mutable_view(op, "out", out),
                            options_of(op, options, q->dtype, false), {.lse = optional_mutable_view(op, "lse", lse)},
                            stream, {memory, bytes});
  });
}

attend_status attend_cuda_append(const attend_tensor* k, const attend_tensor* v, const attend_cuda_cache* cache,
                                 int32_t own_scales, void* stream) {
  return guard([&] {
    const char* op = "attend_cuda_append";
    attend::cuda::append(view(op, "k", k), view(op, "v", v), cache_of(op, cache), own_scales != 0, stream);
  });
}
