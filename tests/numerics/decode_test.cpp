// The decode path reads keys and values where they lie, the prefill path packs them first: the same bits either way.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "attend/paged_kv_cache.hpp"
#include "base/random.hpp"
#include "support/buffer.hpp"
#include "support/tensors.hpp"

namespace attend::test {
namespace {

using std::int64_t;

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};

std::vector<float> numbers(const Shape& shape, std::uint64_t key) {
  std::vector<float> values(static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * shape[3]));
  for (std::size_t n = 0; n < values.size(); ++n) values[n] = static_cast<float>(normal(key, n));
  return values;
}

struct Dims {
  int64_t group, N, D, E;
};
std::string text(DType dtype, const Dims& d) {
  return std::string(name(dtype)) + ", " + std::to_string(d.group) + " rows, " + std::to_string(d.N) + " keys, D" +
         std::to_string(d.D) + " E" + std::to_string(d.E);
}

struct Queries {  // sixty for each head of a group
  Queries(DType dtype, const Dims& d)
      : all(to_tensor(dtype, {1, d.group, 60, d.D}, numbers({1, d.group, 60, d.D}, 3))) {}
  View last() const { return slice(View(all), 2, 59, 1); }
  Tensor all;
};

// The last query of 60 with its group, alone and among all, which are too many rows to be few.
// Results in f32: rounded to a half type they would hide a difference.
void expect_same_alone(DType dtype, const Dims& d, View k, View v, const Mask& mask) {
  const Queries q(dtype, d);
  Tensor whole(DType::f32, {1, d.group, 60, d.E}), alone(DType::f32, {1, d.group, 1, d.E});
  Tensor whole_lse(DType::f32, {1, d.group, 60, 1}), alone_lse(DType::f32, {1, d.group, 1, 1});
  attention(q.all, k, v, whole, {.mask = mask}, {.lse = whole_lse});
  attention(q.last(), k, v, alone, {.mask = mask}, {.lse = alone_lse});
  ASSERT_TRUE(same_bits(alone, slice(View(whole), 2, 59, 1))) << text(dtype, d);
  ASSERT_TRUE(same_bits(alone_lse, slice(View(whole_lse), 2, 59, 1))) << text(dtype, d);
}

TEST(Decode, GiveTheBitsOfMany) {
  for (const DType dtype : kDTypes)
    for (int64_t group = 1; group <= 7; ++group)
      for (const auto& [N, D, E] : {std::tuple<int64_t, int64_t, int64_t>{64, 64, 64},
                                    {700, 128, 128},
                                    {640, 32, 96},
                                    {1100, 48, 16},
                                    {130, 80, 72},
                                    {600, 4, 8}}) {
        const Dims d{group, N, D, E};
        const Tensor k = to_tensor(dtype, {1, 1, N, D}, numbers({1, 1, N, D}, 1));
        const Tensor v = to_tensor(dtype, {1, 1, N, E}, numbers({1, 1, N, E}, 2));
        expect_same_alone(dtype, d, k, v, no_mask());
        expect_same_alone(dtype, d, k, v, window(100, 0));
      }
}

// Keys and values inside wider rows, and with heads that do not begin where a row of cells could.
TEST(Decode, ReadAnyLayout) {
  for (const DType dtype : kDTypes)
    for (const auto& [wide, first] :
         {std::pair<int64_t, int64_t>{66, 0}, {66, 1}, {65, 0}, {65, 1}, {128, 64}, {192, 65}}) {
      const Dims d{4, 320, 64, 64};
      const Tensor k = to_tensor(dtype, {1, 1, 320, wide}, numbers({1, 1, 320, wide}, 1));
      const Tensor v = to_tensor(dtype, {1, 1, 320, wide}, numbers({1, 1, 320, wide}, 2));
      expect_same_alone(dtype, d, slice(View(k), 3, first, 64), slice(View(v), 3, first, 64), no_mask());
      const Tensor k_compact = to_tensor(dtype, {1, 1, 320, 64}, numbers({1, 1, 320, 64}, 1));
      expect_same_alone(dtype, d, k_compact, slice(View(v), 3, first, 64), no_mask());
    }
}

// An inf or NaN among the values: hidden it changes nothing, seen it goes where it goes with many rows.
TEST(Decode, KeepHiddenValuesOut) {
  const float kBad[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()};
  for (const DType dtype : kDTypes)
    for (const float bad : kBad)
      for (const int64_t at : {3, 70, 255, 260, 319}) {
        const Dims d{3, 320, 64, 64};
        const Tensor k = to_tensor(dtype, {1, 1, 320, 64}, numbers({1, 1, 320, 64}, 1));
        std::vector<float> values = numbers({1, 1, 320, 64}, 2);
        const Tensor clean = to_tensor(dtype, {1, 1, 320, 64}, values);
        values[static_cast<std::size_t>(at * 64 + 5)] = bad;
        const Tensor v = to_tensor(dtype, {1, 1, 320, 64}, values);
        expect_same_alone(dtype, d, k, v, no_mask());
        expect_same_alone(dtype, d, k, v, window(40, 0));

        const Queries q(dtype, d);
        Tensor expected(dtype, {1, 3, 1, 64}), got(dtype, {1, 3, 1, 64});
        std::vector<std::uint8_t> seen(320, 1);
        seen[static_cast<std::size_t>(at)] = 0;
        const AttentionOptions options{.mask = dense(seen.data(), {1, 1, 1, 320})};
        attention(q.last(), k, clean, expected, options);
        attention(q.last(), k, v, got, options);
        ASSERT_TRUE(same_bits(expected, got)) << text(dtype, d) << ", bad value at key " << at;
      }
}

// Over a cache of any kind: one query gives the bits it has among sixty.
TEST(Decode, GiveTheBitsOfManyOverCaches) {
  for (const DType dtype : kDTypes)
    for (const bool int8 : {false, true})
      for (const Dims& d :
           {Dims{1, 700, 64, 64}, {4, 640, 128, 128}, {6, 300, 96, 40}, {5, 200, 32, 32}, {2, 100, 7, 9}})
        for (const bool bad : {false, true}) {
          std::vector<float> values = numbers({1, 1, d.N, d.E}, 2);
          if (bad) values[static_cast<std::size_t>((d.N - 55) * d.E + 1)] = std::numeric_limits<float>::quiet_NaN();
          PagedKvCache cache(
              {.dtype = dtype, .kv_heads = 1, .key_dim = d.D, .value_dim = d.E, .pages = 12, .int8 = int8});
          const std::vector<int64_t> sequence{cache.add()};
          cache.append(sequence[0], to_tensor(dtype, {1, 1, d.N, d.D}, numbers({1, 1, d.N, d.D}, 1)),
                       to_tensor(dtype, {1, 1, d.N, d.E}, values));
          const Queries q(dtype, d);
          for (const Mask& mask : {no_mask(), window(50, 0)}) {
            Tensor whole(DType::f32, {1, d.group, 60, d.E}), alone(DType::f32, {1, d.group, 1, d.E});
            attention(q.all, cache, sequence, whole, {.mask = mask});
            attention(q.last(), cache, sequence, alone, {.mask = mask});
            ASSERT_TRUE(same_bits(alone, slice(View(whole), 2, 59, 1)))
                << text(dtype, d) << (int8 ? " int8" : "") << (bad ? ", with a NaN" : "");
          }
        }
}

}  // namespace
}  // namespace attend::test
