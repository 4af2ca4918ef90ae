// What attention says about arguments that were forgotten or are empty: the mistake, and what to do.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "attend/attend.hpp"
#include "unit/error_of.hpp"
#include "unit/op_testing.hpp"

namespace attend {
namespace {

using test::error_of;
using test::ops::random_tensor;

const Tensor& some() {
  static const Tensor x = random_tensor(DType::f32, {1, 1, 3, 8}, 1);
  return x;
}

TEST(AttentionMessages, AnEmptyInputIsNamed) {
  const Tensor none, no_batch(DType::f32, {0, 1, 3, 8}), no_keys(DType::f32, {1, 1, 0, 8});
  const std::string expected = " is an empty tensor, expected one of [batch, heads, length, dim]";
  EXPECT_EQ(error_of([&] { attention(none, some(), some()); }), "attention: q" + expected);
  EXPECT_EQ(error_of([&] { attention(some(), none, some()); }), "attention: k" + expected);
  EXPECT_EQ(error_of([&] { attention(some(), some(), none); }), "attention: v" + expected);
  EXPECT_EQ(error_of([&] { attention(no_batch, some(), some()); }), "attention: q batch is 0, expected 1 (k batch)");
  EXPECT_EQ(error_of([&] { attention(some(), no_batch, some()); }), "attention: k batch is 0, expected 1 (q batch)");
  EXPECT_EQ(error_of([&] { attention(some(), no_keys, some()); }), "attention: k length is 0, expected 3 (v length)");
}

TEST(AttentionMessages, AForgottenLseIsNamedWithTheWayToAskForIt) {
  const AttentionResult r = attention(some(), some(), some());
  const std::string expected = ": lse is empty, expected [1, 1, 3, 1], what forward gave; ask for it: {.lse = true}";
  EXPECT_EQ(error_of([&] { attention_backward(r.out, some(), some(), some(), r.out, r.lse); }),
            "attention_backward" + expected);
  EXPECT_EQ(error_of([&] { visit_weights(some(), some(), r.lse, [](auto) {}); }), "visit_weights" + expected);
  EXPECT_EQ(error_of([&] { const Lens lens(some(), some(), {}, {.lse = r.lse}); }), "Lens" + expected);
}

TEST(AttentionMessages, ASequenceForEachBatch) {
  PagedKvCache cache({.kv_heads = 1, .key_dim = 8, .value_dim = 8, .pages = 4});
  const std::int64_t one[] = {cache.add()}, three[] = {one[0], one[0], one[0]};
  const Tensor q = random_tensor(DType::f32, {2, 1, 1, 8}, 1);
  Tensor out(DType::f32, {2, 1, 1, 8});
  EXPECT_EQ(error_of([&] { attention(q, cache, one, out); }),
            "attention over a cache: sequences has 1 number, expected 2, one for each batch of q");
  EXPECT_EQ(error_of([&] { attention(q, cache, three, out); }),
            "attention over a cache: sequences has 3 numbers, expected 2, one for each batch of q");
}

TEST(AttentionMessages, ASavedStateThatForwardDidNotFill) {
  const MultiHeadAttention layer({.width = 8, .heads = 2});
  EXPECT_EQ(error_of([&] { (void)layer.backward(some(), {}); }),
            "multi_head_attention: saved x shape is [0, 0, 0, 0]: saved is empty; let forward fill it: forward(x, "
            "options, {.saved = &saved})");
  const LatentAttention latent({.width = 8, .heads = 2, .kv_rank = 4, .nope_dim = 4, .rope_dim = 2, .value_dim = 4});
  EXPECT_NE(
      error_of([&] { (void)latent.backward(some(), {}); }).find("let forward fill it: forward(x, options, &saved)"),
      std::string::npos);
}

}  // namespace
}  // namespace attend
