// Tests of the C ABI for GPUs where there may be none: what is refused, and with which words; sizes of the structs.
// Results are tried by tests/gpu/emulated/c_abi_test.cpp.
#include <gtest/gtest.h>

#include <cstddef>
#include <string>

#include "attend/attend_cuda.h"
#include "attend/cuda.hpp"
#include "unit/c_abi_tensors.hpp"

namespace attend {
namespace {

using test::drawn;
using test::is_ok;
using test::is_refused;
using test::seen;

// A program keeps them: fields are only ever added at the end of the second.
static_assert(sizeof(attend_cuda_pages) == 80 && offsetof(attend_cuda_pages, scales) == 72);
static_assert(sizeof(attend_cuda_cache) == 208 && offsetof(attend_cuda_cache, k) == 16 &&
              offsetof(attend_cuda_cache, v) == 96 && offsetof(attend_cuda_cache, lengths) == 176 &&
              offsetof(attend_cuda_cache, table_stride) == 200);
static_assert(static_cast<int>(cuda::CacheFormat::int8) == ATTEND_CUDA_CACHE_INT8 &&
              static_cast<int>(cuda::CacheFormat::fp8) == ATTEND_CUDA_CACHE_FP8 &&
              static_cast<int>(cuda::Order::free) == ATTEND_CUDA_ORDER_FREE);

// Tensors of the host's memory, which no GPU takes.
struct CAbiCuda : testing::Test {
  CAbiCuda() {
    attend_cuda_cache_init(&cache);
    const Shape& shape = x.shape();
    for (std::size_t d = 0; d < 4; ++d) cache.k.shape[d] = shape[d], cache.k.strides[d] = x.view().strides[d];
    cache.k.data = x.view().data;
    cache.v = cache.k;
    cache.lengths = lengths;
    gradients.dq = &result, gradients.dk = &dk, gradients.dv = &dv;
  }
  attend_status attention() const {
    return attend_cuda_attention(&q, &q, &q, &result, nullptr, &lse, nullptr, nullptr);
  }
  attend_status backward(std::int32_t order) const {
    return attend_cuda_attention_backward(&q, &q, &q, &q, &q, &lse, &gradients, nullptr, order, nullptr);
  }
  attend_status map(const attend_tensor* mass) const {
    return attend_cuda_map(&q, &q, &lse, 0, 0, nullptr, mass, nullptr, nullptr, nullptr);
  }
  attend_status cached() const {
    return attend_cuda_cached_attention(&q, &cache, &result, nullptr, nullptr, nullptr, 0, nullptr);
  }

  Tensor x = drawn(1, {1, 1, 16, 64}, DType::bf16), y = drawn(2, {1, 1, 16, 64}, DType::bf16);
  Tensor keys = drawn(5, y.shape(), DType::bf16), values = drawn(6, y.shape(), DType::bf16);
  Tensor sums = drawn(3, {1, 1, 16, 1}), weights = drawn(4, {1, 1, 16, 16});
  attend_tensor q = seen(x), result = seen(y), dk = seen(keys), dv = seen(values), lse = seen(sums),
                cells = seen(weights);
  attend_attention_gradients gradients = [] {
    attend_attention_gradients made;
    attend_attention_gradients_init(&made);
    return made;
  }();
  attend_cuda_cache cache{};
  const std::int32_t lengths[1] = {3};
};

TEST_F(CAbiCuda, SaysWhetherAndWhyNot) {
  EXPECT_EQ(attend_cuda_available() == 1, cuda::available());
  EXPECT_EQ(attend_cuda_why_not(), cuda::why_not());
  EXPECT_EQ(attend_cuda_available() == 1, std::string(attend_cuda_why_not()).empty());
}

TEST_F(CAbiCuda, EveryCallSaysWhyItCannotBe) {
  const std::string why_not = cuda::why_not();
  const char* const words = why_not.empty() ? "host" : why_not.c_str();  // or its kernels have no caches
  EXPECT_TRUE(is_refused(attention(), words));
  EXPECT_TRUE(is_refused(backward(ATTEND_CUDA_ORDER_FIXED), words));
  EXPECT_TRUE(is_refused(map(&cells), words));
  if (why_not.empty()) GTEST_SKIP() << "there is a GPU: what it does with caches is another test's";
  EXPECT_TRUE(is_refused(cached(), words));
  EXPECT_TRUE(is_refused(attend_cuda_append(&q, &q, &cache, 1, nullptr), words));
}

TEST_F(CAbiCuda, RefusesWhatIsMissingOrUnknown) {
  EXPECT_TRUE(
      is_refused(attend_cuda_attention(nullptr, &q, &q, &result, nullptr, nullptr, nullptr, nullptr), "q is null"));
  EXPECT_TRUE(
      is_refused(attend_cuda_attention(&q, &q, &q, nullptr, nullptr, nullptr, nullptr, nullptr), "out is null"));
  EXPECT_TRUE(is_refused(
      attend_cuda_attention_backward(&q, &q, &q, &q, &q, &lse, nullptr, nullptr, ATTEND_CUDA_ORDER_FIXED, nullptr),
      "gradients is null"));
  EXPECT_TRUE(is_refused(backward(2), "order is 2"));
  EXPECT_TRUE(is_refused(map(nullptr), "mass is null"));
  EXPECT_TRUE(is_refused(attend_cuda_working_bytes(&q, &cache, nullptr), "bytes is null"));
  EXPECT_TRUE(is_refused(attend_cuda_append(&q, &q, nullptr, 1, nullptr), "cache is null"));
  cache.format = 3;
  EXPECT_TRUE(is_refused(cached(), "the format of a cache is 3"));
  cache.format = ATTEND_CUDA_CACHE_PLAIN, cache.struct_size = sizeof(cache) + 8;
  EXPECT_TRUE(is_refused(cached(), "attend_cuda_cache.struct_size is 216"));
  cache.struct_size = 12;
  EXPECT_TRUE(is_refused(cached(), "attend_cuda_cache.struct_size is 12"));
}

}  // namespace
}  // namespace attend
