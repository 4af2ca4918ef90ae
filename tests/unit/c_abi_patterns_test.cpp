// Tests of the C ABI of unions and patterns: the bits of the C++ masks, and a status for all that is wrong.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "attend/attend.hpp"
#include "attend/attend_variants.h"
#include "unit/c_abi_tensors.hpp"

namespace attend {
namespace {

using test::drawn;
using test::is_ok;
using test::is_refused;
using test::same_bits;
using test::seen;

constexpr std::int64_t H = 2, M = 12, N = 16, D = 8;

using MaskHandle = std::unique_ptr<attend_mask, decltype(&attend_mask_free)>;

void expect_twin(attend_mask* mask, const Mask& twin) {
  Tensor q = drawn(1, {1, H, M, D}, DType::f32), k = drawn(2, {1, H, N, D}, DType::f32);
  Tensor out(DType::f32, {1, H, M, D});
  const attend_tensor cq = seen(q), ck = seen(k), cout = seen(out);
  attend_attention_options options;
  attend_attention_options_init(&options);
  options.mask = mask;
  ASSERT_TRUE(is_ok(attend_attention(&cq, &ck, &ck, &cout, &options, nullptr, nullptr)));
  EXPECT_TRUE(same_bits(out, attention(q, k, k, {.mask = twin}).out));
  EXPECT_FALSE(same_bits(out, attention(q, k, k).out));
}

TEST(CAbiPatterns, EveryMaskEqualsItsCppTwin) {
  const std::int64_t positions[] = {9, 2}, permutations[] = {2, 0, 3, 1, 0, 1, 2, 3};
  attend_bigbird_options bird;
  attend_bigbird_options_init(&bird);
  EXPECT_EQ(bird.block, BigBird{}.block);
  EXPECT_EQ(bird.window_blocks, BigBird{}.window_blocks);
  EXPECT_EQ(bird.global_blocks, BigBird{}.global_blocks);
  EXPECT_EQ(bird.random_blocks, BigBird{}.random_blocks);
  bird.block = 2;
  bird.window_blocks = 1;
  bird.random_blocks = 2;
  bird.heads = H;
  bird.seed = 5;
  bird.causal = 1;
  struct Twin {
    const char* name;
    std::function<attend_status(attend_mask**)> make;
    Mask mask;
  };
  const std::vector<Twin> twins = {
      {"chunks", [](auto m) { return attend_mask_chunks(5, 1, ATTEND_FIRST_KEY, m); }, chunks(5, 1, Align::first_key)},
      {"dilated", [](auto m) { return attend_mask_dilated(3, ATTEND_LAST_KEY, m); }, dilated(3)},
      {"columns", [](auto m) { return attend_mask_columns(5, 1, 2, m); }, columns(5, 1, 2)},
      {"tokens", [&](auto m) { return attend_mask_tokens(positions, 2, m); }, tokens({2, 9})},
      {"global_tokens", [&](auto m) { return attend_mask_global_tokens(positions, 2, ATTEND_FIRST_KEY, m); },
       global_tokens({2, 9}, Align::first_key)},
      {"strided", [](auto m) { return attend_mask_strided(3, ATTEND_LAST_KEY, m); }, strided(3)},
      {"fixed", [](auto m) { return attend_mask_fixed(4, 2, ATTEND_LAST_KEY, m); }, fixed(4, 2)},
      {"longformer", [&](auto m) { return attend_mask_longformer(2, 2, positions, 2, ATTEND_LAST_KEY, m); },
       longformer(2, 2, {2, 9})},
      {"longformer, local", [&](auto m) { return attend_mask_longformer(2, 1, nullptr, 0, ATTEND_LAST_KEY, m); },
       longformer(2)},
      {"streaming", [](auto m) { return attend_mask_streaming(2, 3, ATTEND_LAST_KEY, m); }, streaming(2, 3)},
      {"bigbird", [&](auto m) { return attend_mask_bigbird(M, N, &bird, m); }, bigbird(M, N, {2, 1, 1, 2, H, 5, true})},
      {"permutation", [&](auto m) { return attend_mask_block_permutation(M, N, 4, 2, permutations, 0, m); },
       block_permutation(M, N, {{2, 0, 3, 1}, {0, 1, 2, 3}})},
      {"random permutation", [](auto m) { return attend_mask_block_permutation(M, N, 4, 2, nullptr, 9, m); },
       block_permutation(M, N, 4, 2, 9)},
  };
  for (const Twin& twin : twins) {
    SCOPED_TRACE(twin.name);
    attend_mask* mask = nullptr;
    ASSERT_TRUE(is_ok(twin.make(&mask)));
    const MaskHandle held(mask, &attend_mask_free);
    expect_twin(mask, twin.mask);
  }
}

TEST(CAbiPatterns, UnionsStandAlone) {
  attend_mask *a = nullptr, *b = nullptr, *either = nullptr, *rest = nullptr;
  ASSERT_TRUE(is_ok(attend_mask_window(1, 0, ATTEND_LAST_KEY, &a)));
  ASSERT_TRUE(is_ok(attend_mask_columns(6, 0, 1, &b)));
  ASSERT_TRUE(is_ok(attend_mask_or(a, b, &either)));
  ASSERT_TRUE(is_ok(attend_mask_except(a, &rest)));
  attend_mask_free(a);
  attend_mask_free(b);
  const MaskHandle held(either, &attend_mask_free), other(rest, &attend_mask_free);
  expect_twin(either, window(1, 0) | columns(6, 0, 1));
  expect_twin(rest, except(window(1, 0)));
}

TEST(CAbiPatterns, RefusesWithAText) {
  attend_mask* mask = nullptr;
  EXPECT_TRUE(is_refused(attend_mask_or(nullptr, nullptr, &mask), " is null, expected a pointer"));
  EXPECT_TRUE(is_refused(attend_mask_except(nullptr, &mask), "attend_mask_except: hidden is null"));
  EXPECT_TRUE(is_refused(attend_mask_dilated(0, ATTEND_LAST_KEY, &mask), "dilated: step is 0, expected 1 to 2^60"));
  EXPECT_TRUE(is_refused(attend_mask_dilated(2, 7, &mask), "attend_mask_dilated: align is 7"));
  EXPECT_TRUE(is_refused(attend_mask_tokens(nullptr, 2, &mask), "attend_mask_tokens: positions is null"));
  EXPECT_TRUE(is_refused(attend_mask_columns(4, 4, 1, &mask), "columns: first is 4"));
  attend_bigbird_options bird{};
  EXPECT_TRUE(is_refused(attend_mask_bigbird(8, 8, &bird, &mask), "attend_mask_bigbird: attend_bigbird_options"));
  EXPECT_TRUE(is_refused(attend_mask_block_permutation(8, 8, 0, 1, nullptr, 0, &mask), "blocks is 0"));
  const std::int64_t two[] = {0, 0};
  EXPECT_TRUE(is_refused(attend_mask_block_permutation(8, 8, 2, 1, two, 0, &mask), "permutation[1] is 0"));
  EXPECT_TRUE(is_refused(attend_mask_block_permutation(8, 8, 2, -1, two, 0, &mask), "heads -1"));
  EXPECT_EQ(mask, nullptr);
}

}  // namespace
}  // namespace attend
