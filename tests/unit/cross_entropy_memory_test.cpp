// The logits of all tokens are never in memory.
#include "attend/cross_entropy.hpp"
#include "unit/allocated.hpp"
#include "unit/op_testing.hpp"

namespace attend::test::ops {
namespace {

// 32 MiB of logits at a time, 16 MiB of packed weights beside them, and what is left for rows and sums; all logits of
// these tokens would take 512 MiB.
TEST(CrossEntropy, MemoryIsThatOfAChunk) {
  constexpr std::int64_t kTokens = 4096, kVocabulary = 32768, kWidth = 16, kMiB = 1 << 20;
  const Tensor hidden = random_tensor(DType::f32, {1, 1, kTokens, kWidth}, 1),
               weight = random_tensor(DType::f32, {1, 1, kVocabulary, kWidth}, 2),
               dloss = random_tensor(DType::f32, {1, 1, kTokens, 1}, 3);
  Tensor dhidden(DType::f32, hidden.shape()), dweight(DType::f32, weight.shape()), loss(DType::f32, dloss.shape());
  const std::vector<std::int64_t> targets(kTokens, 7);
  release_memory();
  EXPECT_LE(peak_of([&] { cross_entropy(hidden, weight, targets, loss); }), 56 * kMiB);
  release_memory();
  EXPECT_LE(peak_of([&] { cross_entropy_backward(dloss, hidden, weight, targets, {dhidden, dweight, loss}); }),
            56 * kMiB);
}

}  // namespace
}  // namespace attend::test::ops
