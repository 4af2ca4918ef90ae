// Tests of the C ABI of the paged KV cache: the same bits as C++, and a status for all that is wrong.
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <vector>

#include "attend/attend.hpp"
#include "unit/c_abi_tensors.hpp"

namespace attend {
namespace {

using test::drawn;
using test::is_ok;
using test::is_refused;
using test::same_bits;
using test::seen;

constexpr std::int64_t H = 4, Hk = 2, D = 8, E = 6;

struct CAbiPagedKvCache : testing::Test {
  static attend_paged_kv_cache_options fresh() {
    attend_paged_kv_cache_options options;
    attend_paged_kv_cache_options_init(&options);
    options.kv_heads = Hk;
    options.key_dim = D;
    options.value_dim = E;
    options.pages = 8;
    return options;
  }
  void SetUp() override {
    const attend_paged_kv_cache_options options = fresh();
    ASSERT_TRUE(is_ok(attend_paged_kv_cache_create(&options, &cache)));
    ASSERT_TRUE(is_ok(attend_paged_kv_cache_add(cache, &sequence)));
  }
  void TearDown() override { attend_paged_kv_cache_free(cache); }

  attend_status append(std::int64_t to, std::uint64_t key, std::int64_t count) {
    Tensor k = drawn(key, {1, Hk, count, D}), v = drawn(key + 1, {1, Hk, count, E});
    const attend_tensor ck = seen(k), cv = seen(v);
    return attend_paged_kv_cache_append(cache, to, &ck, &cv);
  }
  std::int64_t length(std::int64_t of) {
    std::int64_t result = -1;
    EXPECT_TRUE(is_ok(attend_paged_kv_cache_length(cache, of, &result)));
    return result;
  }
  std::int64_t pages_left() {
    std::int64_t result = -1;
    EXPECT_TRUE(is_ok(attend_paged_kv_cache_pages_left(cache, &result)));
    return result;
  }

  attend_paged_kv_cache* cache = nullptr;
  std::int64_t sequence = -1;
};

// Every call that changes a cache, and the same in C++: what attention gives is the same to the bit.
TEST_F(CAbiPagedKvCache, HasTheBitsOfCpp) {
  for (const auto& [dtype, int8] : {std::pair{DType::f32, false}, {DType::bf16, false}, {DType::f16, true}}) {
    SCOPED_TRACE(name(dtype));
    attend_paged_kv_cache_options options = fresh();
    options.dtype = static_cast<std::int32_t>(dtype);
    options.int8 = int8 ? 1 : 0;
    attend_paged_kv_cache* made = nullptr;
    ASSERT_TRUE(is_ok(attend_paged_kv_cache_create(&options, &made)));
    const std::unique_ptr<attend_paged_kv_cache, decltype(&attend_paged_kv_cache_free)> held(
        made, &attend_paged_kv_cache_free);
    PagedKvCache twin({.dtype = dtype, .kv_heads = Hk, .key_dim = D, .value_dim = E, .pages = 8, .int8 = int8});
    Tensor k = drawn(1, {1, Hk, 200, D}, dtype), v = drawn(2, {1, Hk, 200, E}, dtype);
    Tensor other_k = drawn(3, {1, Hk, 30, D}, dtype), other_v = drawn(4, {1, Hk, 30, E}, dtype);
    const attend_tensor ck = seen(k), cv = seen(v), cother_k = seen(other_k), cother_v = seen(other_v);

    std::int64_t a = -1, b = -1;
    ASSERT_TRUE(is_ok(attend_paged_kv_cache_add(made, &a)));
    ASSERT_TRUE(is_ok(attend_paged_kv_cache_append(made, a, &ck, &cv)));
    ASSERT_TRUE(is_ok(attend_paged_kv_cache_fork(made, a, 150, &b)));
    ASSERT_TRUE(is_ok(attend_paged_kv_cache_append(made, b, &cother_k, &cother_v)));
    ASSERT_TRUE(is_ok(attend_paged_kv_cache_replace(made, a, 50, &cother_k, &cother_v)));
    ASSERT_TRUE(is_ok(attend_paged_kv_cache_truncate(made, a, 190)));
    ASSERT_TRUE(is_ok(attend_paged_kv_cache_forget(made, b, 0, 64)));
    const std::int64_t twin_a = twin.add();
    twin.append(twin_a, k, v);
    const std::int64_t twin_b = twin.fork(twin_a, 150);
    twin.append(twin_b, other_k, other_v);
    twin.replace(twin_a, 50, other_k, other_v);
    twin.truncate(twin_a, 190);
    twin.forget(twin_b, 0, 64);
    EXPECT_EQ(a, twin_a);
    EXPECT_EQ(b, twin_b);

    std::int64_t pages = -1, bytes = -1, per_token = -1;
    ASSERT_TRUE(is_ok(attend_paged_kv_cache_pages_left(made, &pages)));
    EXPECT_EQ(pages, twin.free_pages());
    ASSERT_TRUE(is_ok(attend_paged_kv_cache_bytes(made, &bytes, &per_token)));
    EXPECT_EQ(bytes, twin.bytes());
    EXPECT_EQ(per_token, twin.bytes_per_token());
    ASSERT_TRUE(is_ok(attend_paged_kv_cache_bytes(made, nullptr, nullptr)));
    ASSERT_TRUE(is_ok(attend_paged_kv_cache_pages_to_append(made, b, 100, &pages)));
    EXPECT_EQ(pages, twin.pages_to_append(twin_b, 100));

    Tensor q = drawn(5, {2, H, 3, D}, dtype), out(dtype, {2, H, 3, E}), lse(DType::f32, {2, H, 3, 1});
    Tensor expected(dtype, out.shape()), expected_lse(DType::f32, lse.shape());
    const attend_tensor cq = seen(q), cout = seen(out), clse = seen(lse);
    const std::int64_t sequences[] = {b, a};
    attend_mask* mask = nullptr;
    ASSERT_TRUE(is_ok(attend_mask_causal(ATTEND_LAST_KEY, &mask)));
    attend_attention_options c_options;
    attend_attention_options_init(&c_options);
    c_options.mask = mask;
    EXPECT_TRUE(is_ok(attend_paged_attention(&cq, made, sequences, 2, &cout, &c_options, &clse, nullptr)));
    attend_mask_free(mask);
    attention(q, twin, std::vector{twin_b, twin_a}, expected, {.mask = causal()}, {.lse = expected_lse});
    EXPECT_TRUE(same_bits(out, expected));
    EXPECT_TRUE(same_bits(lse, expected_lse));
  }
}

TEST_F(CAbiPagedKvCache, RunningOutOfPagesIsAStatusAndChangesNothing) {
  ASSERT_TRUE(is_ok(append(sequence, 1, 7 * 64)));
  EXPECT_EQ(append(sequence, 3, 65), ATTEND_OUT_OF_PAGES);
  EXPECT_NE(std::strstr(attend_last_error(), "needs 2 pages"), nullptr) << attend_last_error();
  EXPECT_EQ(length(sequence), 7 * 64);
  EXPECT_EQ(pages_left(), 1);
  ASSERT_TRUE(is_ok(append(sequence, 3, 64)));
  std::int64_t forked = 77;
  EXPECT_EQ(attend_paged_kv_cache_fork(cache, sequence, 65, &forked), ATTEND_OUT_OF_PAGES);
  EXPECT_EQ(forked, 77);
  ASSERT_TRUE(is_ok(attend_paged_kv_cache_remove(cache, sequence)));
  EXPECT_EQ(pages_left(), 8);
}

TEST_F(CAbiPagedKvCache, BadOptionsGiveNoHandle) {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  using Options = attend_paged_kv_cache_options;
  const std::vector<std::pair<const char*, void (*)(Options&)>> edits{
      {"dtype is f64", [](Options& o) { o.dtype = ATTEND_F64; }},
      {"dtype is 77", [](Options& o) { o.dtype = 77; }},
      {"dtype is -1", [](Options& o) { o.dtype = -1; }},
      {"kv_heads is 0", [](Options& o) { o.kv_heads = 0; }},
      {"key_dim is -8", [](Options& o) { o.key_dim = -8; }},
      {"a page", [](Options& o) { o.value_dim = kHuge; }},
      {"pages is 0", [](Options& o) { o.pages = 0; }},
      {"pages is", [](Options& o) { o.pages = kHuge; }},
      {"attend_paged_kv_cache_options_init", [](Options& o) { o.struct_size = 1; }},
  };
  for (const auto& [words, edit] : edits) {
    Options options = fresh();
    edit(options);
    attend_paged_kv_cache* made = cache;
    EXPECT_TRUE(is_refused(attend_paged_kv_cache_create(&options, &made), words));
    EXPECT_EQ(made, nullptr);
  }
  const Options options = fresh();
  attend_paged_kv_cache* made = cache;
  EXPECT_TRUE(is_refused(attend_paged_kv_cache_create(nullptr, &made), "options is null"));
  EXPECT_TRUE(is_refused(attend_paged_kv_cache_create(&options, nullptr), "the place for the result is null"));
  attend_paged_kv_cache_free(nullptr);
}

TEST_F(CAbiPagedKvCache, BadArgumentsAreRefused) {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  ASSERT_TRUE(is_ok(append(sequence, 1, 70)));
  Tensor k = drawn(1, {1, Hk, 3, D}), v = drawn(2, {1, Hk, 3, E}), wide = drawn(3, {1, Hk, 3, E + 1});
  Tensor q = drawn(4, {1, H, 2, D}), out(DType::f32, {1, H, 2, E});
  const attend_tensor ck = seen(k), cv = seen(v), cwide = seen(wide), cq = seen(q), cout = seen(out);
  std::int64_t number = 0;
  EXPECT_TRUE(is_refused(attend_paged_kv_cache_add(cache, nullptr), "sequence is null"));
  EXPECT_TRUE(is_refused(attend_paged_kv_cache_add(nullptr, &number), "cache is null"));
  EXPECT_TRUE(is_refused(attend_paged_kv_cache_fork(cache, sequence, 71, &number), "length is 71"));
  EXPECT_TRUE(is_refused(attend_paged_kv_cache_fork(cache, sequence, 70, nullptr), "forked is null"));
  EXPECT_TRUE(is_refused(attend_paged_kv_cache_fork(cache, 5, 0, &number), "there is no sequence 5"));
  EXPECT_TRUE(is_refused(attend_paged_kv_cache_remove(cache, -1), "there is no sequence -1"));
  EXPECT_TRUE(is_refused(attend_paged_kv_cache_remove(nullptr, 0), "cache is null"));
  EXPECT_TRUE(is_refused(attend_paged_kv_cache_length(cache, kHuge, &number), "there is no sequence"));
  EXPECT_TRUE(is_refused(attend_paged_kv_cache_length(cache, sequence, nullptr), "length is null"));
  EXPECT_TRUE(is_refused(attend_paged_kv_cache_append(cache, sequence, &ck, &cwide), "v shape"));
  EXPECT_TRUE(is_refused(attend_paged_kv_cache_append(cache, sequence, nullptr, &cv), "k is null"));
  EXPECT_TRUE(is_refused(attend_paged_kv_cache_replace(cache, sequence, 68, &ck, &cv), "has 70"));
  EXPECT_TRUE(is_refused(attend_paged_kv_cache_replace(cache, sequence, -1, &ck, &cv), "has 70"));
  EXPECT_TRUE(is_refused(attend_paged_kv_cache_pages_to_append(cache, sequence, kHuge, &number), "count is"));
  EXPECT_TRUE(is_refused(attend_paged_kv_cache_pages_to_append(cache, sequence, -1, &number), "count is -1"));
  EXPECT_TRUE(is_refused(attend_paged_kv_cache_pages_to_append(cache, sequence, 1, nullptr), "pages is null"));
  EXPECT_TRUE(is_refused(attend_paged_kv_cache_truncate(cache, sequence, 71), "length is 71"));
  EXPECT_TRUE(is_refused(attend_paged_kv_cache_forget(cache, sequence, 0, 63), "whole pages"));
  EXPECT_TRUE(is_refused(attend_paged_kv_cache_forget(cache, sequence, kHuge - 63, 64), "whole pages"));
  EXPECT_TRUE(is_refused(attend_paged_kv_cache_pages_left(cache, nullptr), "pages is null"));
  EXPECT_TRUE(is_refused(attend_paged_kv_cache_bytes(nullptr, &number, nullptr), "cache is null"));

  const std::int64_t none[] = {7};
  EXPECT_TRUE(is_refused(attend_paged_attention(&cq, cache, none, 1, &cout, nullptr, nullptr, nullptr),
                         "there is no sequence 7"));
  EXPECT_TRUE(is_refused(attend_paged_attention(&cq, cache, nullptr, 1, &cout, nullptr, nullptr, nullptr),
                         "sequences is null"));
  EXPECT_TRUE(is_refused(attend_paged_attention(&cq, cache, none, -1, &cout, nullptr, nullptr, nullptr),
                         "number of sequences is -1"));
  EXPECT_TRUE(is_refused(attend_paged_attention(&cq, cache, none, 0, &cout, nullptr, nullptr, nullptr),
                         "sequences has 0 numbers, expected 1"));
  EXPECT_TRUE(is_refused(attend_paged_attention(&cq, nullptr, &sequence, 1, &cout, nullptr, nullptr, nullptr),
                         "cache is null"));
  EXPECT_EQ(length(sequence), 70);
  EXPECT_EQ(pages_left(), 6);
}

}  // namespace
}  // namespace attend
