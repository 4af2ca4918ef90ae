// Tests of the structs that open with their size: what the caller's lacks has its default, what the library's lacks is
// refused, and not a byte past the caller's is written or read. tests/abi has whole programs with older headers.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "attend/attend_variants.h"
#include "unit/c_abi_tensors.hpp"

namespace attend {
namespace {

using test::drawn;
using test::is_ok;
using test::is_refused;
using test::same_bits;
using test::seen;

constexpr std::byte kGuard{0xAB};

struct Attention {
  Attention()
      : q(drawn(1, {1, 2, 3, 4})), k(drawn(2, {1, 2, 5, 4})), v(drawn(3, {1, 2, 5, 4})), out(DType::f32, q.shape()) {}

  attend_status run(const attend_attention_options* options) {
    const attend_tensor cq = seen(q), ck = seen(k), cv = seen(v), cout = seen(out);
    return attend_attention(&cq, &ck, &cv, &cout, options, nullptr, nullptr);
  }

  Tensor q, k, v, out;
};

TEST(CAbiStruct, InitWritesNoMoreThanTheCallersSize) {
  for (std::size_t size = 0; size <= sizeof(attend_attention_options) + 32; ++size) {
    std::vector<std::byte> memory(sizeof(attend_attention_options) + 64, kGuard);
    attend_attention_options_init_sized(reinterpret_cast<attend_attention_options*>(memory.data()), size);
    if (size >= sizeof(std::size_t)) {
      std::size_t written = 0;
      std::memcpy(&written, memory.data(), sizeof(written));
      EXPECT_EQ(written, size);
    }
    for (std::size_t n = size < sizeof(std::size_t) ? 0 : size; n < memory.size(); ++n)
      ASSERT_EQ(memory[n], kGuard) << "byte " << n << " of a struct of " << size;
    for (std::size_t n = sizeof(attend_attention_options); n < size; ++n)
      ASSERT_EQ(memory[n], std::byte{0}) << "byte " << n << ", unknown to the library, of a struct of " << size;
  }
  attend_attention_options_init_sized(nullptr, 64);
}

TEST(CAbiStruct, WhatAShorterStructLacksHasItsDefault) {
  Attention plain, given;
  ASSERT_TRUE(is_ok(plain.run(nullptr)));
  attend_attention_options options;
  attend_attention_options_init(&options);
  Tensor bias = drawn(4, {1, 1, 1, 7});
  const attend_tensor c_bias = seen(bias);
  options.distance_bias = &c_bias;
  ASSERT_TRUE(is_ok(given.run(&options)));
  EXPECT_FALSE(same_bits(given.out, plain.out));
  options.struct_size = offsetof(attend_attention_options, distance_bias);
  ASSERT_TRUE(is_ok(given.run(&options)));
  EXPECT_TRUE(same_bits(given.out, plain.out));

  // A default that is not zero.
  attend_t5_buckets buckets;
  attend_t5_buckets_init(&buckets);
  std::int64_t expected = 0, bucket = 0;
  ASSERT_TRUE(is_ok(attend_t5_bucket(-100, &buckets, &expected)));
  buckets.max_distance = 1000;
  ASSERT_TRUE(is_ok(attend_t5_bucket(-100, &buckets, &bucket)));
  EXPECT_NE(bucket, expected);
  buckets.struct_size = offsetof(attend_t5_buckets, max_distance);
  ASSERT_TRUE(is_ok(attend_t5_bucket(-100, &buckets, &bucket)));
  EXPECT_EQ(bucket, expected);
}

TEST(CAbiStruct, SizesThatNoHeaderHasAreRefused) {
  Attention a;
  attend_attention_options options;
  attend_attention_options_init(&options);
  for (const std::size_t size : std::initializer_list<std::size_t>{0, 3, 7, 9, 60, 150}) {
    options.struct_size = size;
    EXPECT_TRUE(is_refused(a.run(&options), "attend_attention_options_init")) << size;
  }
  // Not a byte of it is read: memory as large as it says is not there.
  for (const std::size_t size : {sizeof(options) + 8, std::size_t{1} << 40, ~std::size_t{7}}) {
    options.struct_size = size;
    EXPECT_TRUE(is_refused(a.run(&options), "a newer attend than this library")) << size;
  }
}

// Structs without a size keep their fields for good; the numbers are those of 64-bit pointers.
constexpr bool k64Bit = sizeof(void*) == 8;
static_assert(!k64Bit || sizeof(attend_tensor) == 80);
static_assert(!k64Bit || sizeof(attend_tile) == 48);
static_assert(!k64Bit || sizeof(attend_score_rule) == 40);
static_assert(!k64Bit || sizeof(attend_feature_map) == 56);
static_assert(!k64Bit || sizeof(attend_projection) == 24);

}  // namespace
}  // namespace attend
