// What the blocks of a transformer block are for: memory that does not grow with the length.
#include "attend/transformer_block.hpp"
#include "unit/allocated.hpp"
#include "unit/op_testing.hpp"

namespace attend::test::ops {
namespace {

// With blocks of queries, memory grows by keys, values and results alone: the rest belongs to a block.
TEST(TransformerBlock, MemoryIsThatOfABlock) {
  constexpr std::int64_t kWidth = 64, kLong = 8192, kBlock = 128;
  TransformerBlock layer({.attention = {.width = kWidth, .heads = 4, .kv_heads = 1}});
  layer.initialise(17);
  const std::int64_t kv_bytes = 2 * 16 * 4, row_bytes = kWidth * 4;  // of a token
  const auto forward_peak = [&](std::int64_t length, std::int64_t block) {
    const Tensor x = random_tensor(DType::f32, {1, 1, length, kWidth}, 18);
    release_memory();
    return peak_of([&] { layer.forward(x, {.mask = window(64, 0)}, {block}); });
  };
  const auto backward_peak = [&](std::int64_t length, std::int64_t block) {
    const Tensor x = random_tensor(DType::f32, {1, 1, length, kWidth}, 18);
    release_memory();
    return peak_of([&] { layer.backward(x, x, {.mask = window(64, 0)}, {block}); });
  };
  forward_peak(kBlock, kBlock);  // threads and kernels are there from now on
  // The kernels keep packed keys and values of their own beside K and V: three times covers both.
  const std::int64_t growth = forward_peak(2 * kLong, kBlock) - forward_peak(kLong, kBlock);
  EXPECT_LE(growth, kLong * (3 * kv_bytes + row_bytes) + (64 << 10));
  EXPECT_GE(forward_peak(2 * kLong, 0) - forward_peak(kLong, 0), kLong * 8 * row_bytes);  // the whole at once does
  // Backward: K, V, their gradients twice, dx; beside them a block.
  const std::int64_t backward_growth = backward_peak(2 * kLong, kBlock) - backward_peak(kLong, kBlock);
  EXPECT_LE(backward_growth, kLong * (6 * kv_bytes + row_bytes) + (64 << 10));
}

}  // namespace
}  // namespace attend::test::ops
