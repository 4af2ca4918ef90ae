// Memory that runs out: whichever allocation of a call fails, the call says so, nothing leaks and the next one works.
#include <gtest/gtest.h>

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <new>
#include <vector>

#include "attend/attend.hpp"
#include "unit/allocated.hpp"
#include "unit/c_abi_tensors.hpp"

namespace attend::test {
std::atomic<std::int64_t> live_bytes{0};
std::atomic<std::int64_t> peak_bytes{0};
}  // namespace attend::test

namespace {

using attend::test::live_bytes;
using attend::test::peak_bytes;

// Allocations to go until one fails; negative: none will. This program's own operator new counts them down.
std::atomic<long> countdown{-1};

void* allocate(std::size_t size, std::size_t alignment) {
  if (countdown.load() >= 0 && countdown.fetch_sub(1) == 0) throw std::bad_alloc();
  const std::size_t rounded = (size + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded);
  if (memory == nullptr) throw std::bad_alloc();
  const auto bytes = static_cast<std::int64_t>(malloc_usable_size(memory));
  const std::int64_t live = live_bytes.fetch_add(bytes) + bytes;
  for (std::int64_t peak = peak_bytes.load(); live > peak && !peak_bytes.compare_exchange_weak(peak, live);) {
  }
  return memory;
}

void release(void* memory) noexcept {
  live_bytes.fetch_sub(static_cast<std::int64_t>(malloc_usable_size(memory)));
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t size) {
  return allocate(size, alignof(std::max_align_t));
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept {
  release(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  release(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  release(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  release(memory);
}

namespace attend {
namespace {

using test::drawn;
using test::is_ok;
using test::seen;

// Lets the first, the second, ... allocation of `call` fail until it gets through; returns how many there are.
long fail_each_allocation(const std::function<attend_status()>& call) {
  EXPECT_TRUE(is_ok(call()));  // threads and kernels are there from now on
  for (long n = 0; n < 10000; ++n) {
    release_memory();  // else it would need nothing
    countdown = n;
    const attend_status status = call();
    const bool failed = countdown.exchange(-1) < 0;
    if (!failed) {
      EXPECT_TRUE(is_ok(status));
      return n;
    }
    EXPECT_EQ(status, ATTEND_OUT_OF_MEMORY) << "allocation " << n << ": " << attend_last_error();
    EXPECT_STREQ(attend_last_error(), "out of memory");
    EXPECT_TRUE(is_ok(call())) << "after allocation " << n << " had failed";
  }
  ADD_FAILURE() << "the call never got through";
  return -1;
}

// Forward, backward and decoding of a shape seen before.
TEST(Memory, AShapeSeenBeforeAllocatesNothing) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "nothing is kept under the address sanitizer";
#endif
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const std::int64_t M : {1, 70, 300}) {
      SCOPED_TRACE(name(dtype));
      const Tensor q = drawn(1, {2, 4, M, 40}, dtype), k = drawn(2, {2, 2, 1300, 40}, dtype);
      Tensor out(dtype, q.shape()), lse(DType::f32, {2, 4, M, 1}), dq(dtype, q.shape()), dk(dtype, k.shape()),
          dv(dtype, k.shape());
      const AttentionOptions options{.mask = window(900, 0)};
      const auto run = [&] {
        attention(q, k, k, out, options, {.lse = lse});
        attention_backward(out, q, k, k, out, lse, {dq, dk, dv}, options);
      };
      run();
      countdown = 0;
      EXPECT_NO_THROW(run());
      EXPECT_EQ(countdown.exchange(-1), 0);
    }
}

TEST(CAbiMemory, Masks) {
  const std::int64_t lengths[] = {3, 4};
  const long count = fail_each_allocation([&] {
    attend_mask *a = nullptr, *b = nullptr, *both = nullptr;
    attend_status status = attend_mask_causal_at(lengths, 2, &a);
    if (status == ATTEND_OK) status = attend_mask_padding(lengths, 2, &b);
    if (status == ATTEND_OK) status = attend_mask_and(a, b, &both);
    attend_mask_free(a);
    attend_mask_free(b);
    attend_mask_free(both);
    return status;
  });
  EXPECT_GE(count, 6);
}

TEST(CAbiMemory, AttentionForwardAndBackward) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    SCOPED_TRACE(name(dtype));
    // Large enough to be split; f64 is the reference's, which allocates for every row.
    const bool f64 = dtype == DType::f64;
    const std::int64_t M = f64 ? 2 : 70, N = f64 ? 3 : 600;
    Tensor q = drawn(1, {1, 4, M, 8}, dtype), k = drawn(2, {1, 2, N, 8}, dtype), v = drawn(3, {1, 2, N, 8}, dtype);
    Tensor out(dtype, q.shape()), lse(f64 ? DType::f64 : DType::f32, {1, 4, M, 1});
    Tensor dq(dtype, q.shape()), dk(dtype, k.shape()), dv(dtype, v.shape());
    const attend_tensor cq = seen(q), ck = seen(k), cv = seen(v), cout = seen(out), clse = seen(lse), cdq = seen(dq),
                        cdk = seen(dk), cdv = seen(dv);
    fail_each_allocation([&] { return attend_attention(&cq, &ck, &cv, &cout, nullptr, &clse, nullptr); });
    attend_attention_gradients gradients;
    attend_attention_gradients_init(&gradients);
    gradients.dq = &cdq, gradients.dk = &cdk, gradients.dv = &cdv;
    fail_each_allocation(
        [&] { return attend_attention_backward(&cq, &cq, &ck, &cv, &cout, &clse, &gradients, nullptr); });
  }
}

TEST(CAbiMemory, TheLayer) {
  Tensor x = drawn(1, {1, 1, 5, 8}), out(DType::f32, x.shape());
  const attend_tensor cx = seen(x), cout = seen(out);
  attend_layer_config config;
  attend_layer_config_init(&config);
  config.width = 8;
  config.heads = 2;
  config.qk_norm = 1;
  config.rope_style = ATTEND_ROPE_HALF_SPLIT;
  const long count = fail_each_allocation([&] {
    attend_layer* layer = nullptr;
    attend_layer_saved* saved = nullptr;
    attend_layer_gradients* gradients = nullptr;
    attend_kv_cache* cache = nullptr;
    attend_status status = attend_layer_create(&config, &layer);
    if (status == ATTEND_OK) status = attend_layer_forward(layer, &cx, nullptr, nullptr, &cout, nullptr, &saved);
    if (status == ATTEND_OK) status = attend_layer_backward(layer, &cx, saved, &gradients);
    if (status == ATTEND_OK) status = attend_kv_cache_create(layer, 1, 8, &cache);
    if (status == ATTEND_OK) status = attend_layer_step(layer, &cx, cache, nullptr, &cout);
    attend_layer_free(layer);
    attend_layer_saved_free(saved);
    attend_layer_gradients_free(gradients);
    attend_kv_cache_free(cache);
    return status;
  });
  EXPECT_GE(count, 20);
}

TEST(CAbiMemory, WeightsAndObservers) {
  Tensor x = drawn(1, {1, 2, 5, 64}), out(DType::f32, x.shape()), lse(DType::f32, {1, 2, 5, 1}),
         sums(DType::f32, {1, 2, 5, 1});
  const attend_tensor cx = seen(x), cout = seen(out), clse = seen(lse), csums = seen(sums);
  attend_row_sums row_sums;
  attend_row_sums_init(&row_sums);
  row_sums.sums = &csums;
  row_sums.values = [](void*, std::int64_t, const attend_tile* tile, float* values, std::int64_t stride) {
    for (std::int64_t r = 0; r < tile->rows; ++r) std::fill_n(values + r * stride, tile->cols, 1.0F);
  };
  fail_each_allocation(
      [&] { return attend_attention_row_sums(&cx, &cx, &cx, &cout, nullptr, &clse, nullptr, &row_sums); });
  fail_each_allocation([&] {
    return attend_visit_weights(
        &cx, &cx, &clse, nullptr, [](void*, const attend_tile*, const float*, std::int64_t) {}, nullptr);
  });

  Tensor rows = drawn(2, {1, 1, 9, 64}), y(DType::f32, {1, 1, 9, 3});
  const attend_tensor crows = seen(rows), cy = seen(y);
  const std::vector<std::byte> data(3 * 2 * 34);
  const long count = fail_each_allocation([&] {
    attend_weight* weight = nullptr;
    attend_status status = attend_weight_create(ATTEND_WEIGHT_Q8_0, 3, 64, data.data(), std::ssize(data), &weight);
    const attend_projection projection{weight, nullptr, &cy};
    if (status == ATTEND_OK) status = attend_project(&crows, &projection, 1);
    attend_weight_free(weight);
    return status;
  });
  EXPECT_GE(count, 4);
}

TEST(CAbiMemory, APagedKvCache) {
  Tensor k = drawn(1, {1, 2, 100, 8}), q = drawn(2, {1, 2, 3, 8}), out(DType::f32, q.shape());
  const attend_tensor ck = seen(k), cq = seen(q), cout = seen(out);
  attend_paged_kv_cache_options options;
  attend_paged_kv_cache_options_init(&options);
  options.kv_heads = 2;
  options.key_dim = options.value_dim = 8;
  options.pages = 6;
  const long count = fail_each_allocation([&] {
    attend_paged_kv_cache* cache = nullptr;
    std::int64_t a = 0, b = 0;
    attend_status status = attend_paged_kv_cache_create(&options, &cache);
    if (status == ATTEND_OK) status = attend_paged_kv_cache_add(cache, &a);
    if (status == ATTEND_OK) status = attend_paged_kv_cache_append(cache, a, &ck, &ck);
    if (status == ATTEND_OK) status = attend_paged_kv_cache_fork(cache, a, 80, &b);
    if (status == ATTEND_OK) status = attend_paged_kv_cache_replace(cache, b, 0, &ck, &ck);
    attend_paged_kv_cache_free(cache);
    return status == ATTEND_INVALID_ARGUMENT ? ATTEND_OK : status;  // 100 tokens do not fit over 80
  });
  EXPECT_GE(count, 8);

  // What a failed call took it gives back.
  attend_paged_kv_cache* cache = nullptr;
  std::int64_t a = 0;
  ASSERT_TRUE(is_ok(attend_paged_kv_cache_create(&options, &cache)));
  ASSERT_TRUE(is_ok(attend_paged_kv_cache_add(cache, &a)));
  const auto pages_left = [&] {
    std::int64_t pages = -1;
    EXPECT_TRUE(is_ok(attend_paged_kv_cache_pages_left(cache, &pages)));
    return pages;
  };
  fail_each_allocation([&] {
    const attend_status status = attend_paged_kv_cache_append(cache, a, &ck, &ck);
    if (status == ATTEND_OK) {
      EXPECT_TRUE(is_ok(attend_paged_kv_cache_truncate(cache, a, 0)));
    }
    EXPECT_EQ(pages_left(), 6);
    return status;
  });
  ASSERT_TRUE(is_ok(attend_paged_kv_cache_append(cache, a, &ck, &ck)));
  std::int64_t forked = 0;  // and kept, so that the list of sequences has to grow
  fail_each_allocation([&] {
    std::int64_t b = 0;
    const attend_status status = attend_paged_kv_cache_fork(cache, a, 64, &b);
    EXPECT_EQ(pages_left(), 4);
    if (status == ATTEND_OK) ++forked;
    return status;
  });
  // Nobody but the sequences holds a page: without them all are free.
  for (std::int64_t b = a + forked; b >= a; --b) EXPECT_TRUE(is_ok(attend_paged_kv_cache_remove(cache, b)));
  EXPECT_EQ(pages_left(), 6);
  ASSERT_TRUE(is_ok(attend_paged_kv_cache_add(cache, &a)));
  ASSERT_TRUE(is_ok(attend_paged_kv_cache_append(cache, a, &ck, &ck)));
  fail_each_allocation([&] { return attend_paged_attention(&cq, cache, &a, 1, &cout, nullptr, nullptr, nullptr); });
  attend_paged_kv_cache_free(cache);
}

}  // namespace
}  // namespace attend
