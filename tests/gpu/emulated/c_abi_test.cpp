// The C ABI for GPUs on the emulated driver: the bits of the C++ calls, forward, backward, maps, caches.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "attend/attend_cuda.h"
#include "attend/cuda.hpp"

namespace {

using namespace attend;
using namespace emulated;

attend_tensor c_view(const Array& array) {
  attend_tensor made;
  const Shape& shape = array.shape;
  const std::int64_t dims[4] = {shape[0], shape[1], shape[2], shape[3]};
  attend_tensor_contiguous(static_cast<std::int32_t>(array.dtype), array.data(), dims, &made);
  return made;
}

bool same(const Array& a, const Array& b) {
  for (std::size_t n = 0; n < a.wide.size(); ++n)
    if (a.get(n) != b.get(n)) return false;
  return true;
}
void is_ok(const char* what, attend_status status) {
  check(std::string(what) + ": " + (status == ATTEND_OK ? "" : attend_last_error()), status == ATTEND_OK, status);
}

void whole_calls() {
  const Shape shape{1, 2, 40, 64};
  Array q(DType::bf16, shape, 1), k(DType::bf16, shape, 1), v(DType::bf16, shape, 1), dout(DType::bf16, shape, 1);
  Array out(DType::bf16, shape, 0), lse(DType::f32, {1, 2, 40, 1}, 0), right_out = out, right_lse = lse;
  attend_attention_options options;
  attend_attention_options_init(&options);
  attend_mask* mask = nullptr;
  is_ok("mask", attend_mask_causal(ATTEND_LAST_KEY, &mask));
  options.mask = mask;
  const AttentionOptions same_options{.mask = causal()};
  const attend_tensor cq = c_view(q), ck = c_view(k), cv = c_view(v), cout = c_view(out), clse = c_view(lse);
  is_ok("attention", attend_cuda_attention(&cq, &ck, &cv, &cout, &options, &clse, nullptr, nullptr));
  cuda::attention(q.view(), k.view(), v.view(), right_out.view(), same_options, {.lse = right_lse.view()});
  check("attention", same(out, right_out) && same(lse, right_lse), 0);

  Array dq = out, dk = out, dv = out, right_q = out, right_k = out, right_v = out;
  const attend_tensor cdout = c_view(dout), cdq = c_view(dq), cdk = c_view(dk), cdv = c_view(dv);
  attend_attention_gradients gradients;
  attend_attention_gradients_init(&gradients);
  gradients.dq = &cdq, gradients.dk = &cdk, gradients.dv = &cdv;
  is_ok("backward", attend_cuda_attention_backward(&cdout, &cq, &ck, &cv, &cout, &clse, &gradients, &options,
                                                   ATTEND_CUDA_ORDER_FIXED, nullptr));
  cuda::attention_backward(dout.view(), q.view(), k.view(), v.view(), out.view(), lse.view(),
                           {right_q.view(), right_k.view(), right_v.view()}, same_options);
  check("backward", same(dq, right_q) && same(dk, right_k) && same(dv, right_v), 0);

  Array mass(DType::f32, {1, 1, 4, 5}, 0), peak = mass, right_mass = mass, right_peak = mass;
  const attend_tensor cmass = c_view(mass), cpeak = c_view(peak);
  const attend_lens_area area{3, 30, 0, kToTheEnd};
  is_ok("map", attend_cuda_map(&cq, &ck, &clse, 0, 1, &area, &cmass, &cpeak, &options, nullptr));
  cuda::map(q.view(), k.view(), lse.view(), {0, 1}, {{3, 30}, right_mass.view(), right_peak.view()}, same_options);
  check("map", same(mass, right_mass) && same(peak, right_peak), 0);

  Array rows(DType::f32, {1, 2, 40, ATTEND_ROW_STATISTICS}, 0);
  const attend_tensor crows = c_view(rows);
  attend_row_statistics statistics;
  attend_row_statistics_init(&statistics);
  statistics.rows = &crows;
  check(
      "statistics, which these kernels have not",
      attend_cuda_attention(&cq, &ck, &cv, &cout, &options, nullptr, &statistics, nullptr) == ATTEND_INVALID_ARGUMENT &&
          std::string(attend_last_error()).find("statistics of rows are not supported") != std::string::npos,
      0);
  attend_mask_free(mask);
}

void caches() {
  constexpr std::int64_t kPages = 40, kTokens = 16, D = 64;
  Array pages(DType::bf16, {kPages, 2, kTokens, D}, 1), values(DType::bf16, {kPages, 2, kTokens, D}, 1);
  Array new_k(DType::bf16, {1, 2, 3, D}, 1), new_v(DType::bf16, {1, 2, 3, D}, 1), q(DType::bf16, {1, 4, 1, D}, 1);
  Array out(DType::bf16, q.shape, 0), lse(DType::f32, {1, 4, 1, 1}, 0), right_out = out, right_lse = lse;
  std::vector<std::int32_t> table(kPages);
  for (std::int32_t n = 0; n < kPages; ++n) table[static_cast<std::size_t>(n)] = (n * 7 + 3) % kPages;
  const std::int32_t length = 600;
  attend_cuda_cache cache;
  attend_cuda_cache_init(&cache);
  const Strides strides = contiguous_strides(pages.shape);
  for (std::size_t d = 0; d < 4; ++d) cache.k.shape[d] = pages.shape[d], cache.k.strides[d] = strides[d];
  cache.v = cache.k, cache.k.data = pages.data(), cache.v.data = values.data();
  cache.lengths = &length, cache.table = table.data(), cache.table_pages = cache.table_stride = kPages;
  cuda::CacheView view;
  view.k = {pages.data(), pages.shape, strides, {}}, view.v = {values.data(), values.shape, strides, {}};
  view.lengths = &length, view.table = table.data(), view.table_pages = view.table_stride = kPages;

  const attend_tensor cq = c_view(q), cout = c_view(out), clse = c_view(lse), ck = c_view(new_k), cv = c_view(new_v);
  Array kept = pages, kept_values = values;
  is_ok("append", attend_cuda_append(&ck, &cv, &cache, 1, nullptr));
  view.k.data = kept.data(), view.v.data = kept_values.data();
  cuda::append(new_k.view(), new_v.view(), view);
  check("append", same(pages, kept) && same(values, kept_values), 0);

  std::int64_t bytes = 0;
  is_ok("working_bytes", attend_cuda_working_bytes(&cq, &cache, &bytes));
  check("working_bytes", bytes > 0 && bytes == cuda::working_bytes(q.view(), view), static_cast<double>(bytes));
  void* const memory = std::aligned_alloc(256, static_cast<std::size_t>(bytes + 255) / 256 * 256);
  is_ok("cached attention", attend_cuda_cached_attention(&cq, &cache, &cout, nullptr, &clse, memory, bytes, nullptr));
  cuda::attention(q.view(), view, right_out.view(), {}, {.lse = right_lse.view()});
  check("cached attention", same(out, right_out) && same(lse, right_lse), 0);
  check("too little memory",
        attend_cuda_cached_attention(&cq, &cache, &cout, nullptr, &clse, memory, bytes - 1, nullptr) ==
            ATTEND_INVALID_ARGUMENT,
        0);
  std::free(memory);
}

}  // namespace

// A process has the kernels of one card.
int main() {
  const pid_t child = fork();
  if (child == 0) setenv("EMULATED_CAPABILITY", "90", 1);
  check("available", attend_cuda_available() == 1 && std::string(attend_cuda_why_not()).empty(), 0);
  if (child == 0)
    caches();
  else
    whole_calls();
  std::printf("%d checks, %d failed\n", checks, failed);
  if (child == 0) return failed == 0 ? 0 : 1;
  int status = 1;
  waitpid(child, &status, 0);
  return failed == 0 && status == 0 ? 0 : 1;
}
