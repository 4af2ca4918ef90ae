// Tests of the C ABI of weights and projections: the same bits as C++, and a status for all that is wrong.
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

constexpr std::int64_t kOut = 70, kIn = 256, L = 5;

using Handle = std::unique_ptr<attend_weight, decltype(&attend_weight_free)>;

std::int64_t bytes_of(std::int32_t format) {
  std::int64_t numbers = 0, bytes = 0;
  EXPECT_TRUE(is_ok(attend_weight_block(format, &numbers, &bytes)));
  return kOut * (kIn / numbers) * bytes;
}

// Any bytes are numbers, but for scales that are inf or NaN: small ones.
std::vector<std::byte> bytes_for(std::int32_t format) {
  std::vector<std::byte> data(static_cast<std::size_t>(bytes_of(format)));
  for (std::size_t n = 0; n < data.size(); ++n) data[n] = static_cast<std::byte>((n * 37 + 11) % 60);
  return data;
}

Handle made(std::int32_t format, const std::vector<std::byte>& data) {
  attend_weight* weight = nullptr;
  EXPECT_TRUE(is_ok(attend_weight_create(format, kOut, kIn, data.data(), std::ssize(data), &weight)));
  return {weight, &attend_weight_free};
}

TEST(CAbiWeight, EveryFormatHasTheBitsOfCpp) {
  Tensor x = drawn(1, {1, 1, L, kIn}), bias = drawn(2, {1, 1, 1, kOut});
  const attend_tensor cx = seen(x), cbias = seen(bias);
  for (std::int32_t format = ATTEND_WEIGHT_F32; format <= ATTEND_WEIGHT_Q6_K; ++format) {
    const auto cpp_format = static_cast<WeightFormat>(format);
    SCOPED_TRACE(name(cpp_format));
    const std::vector<std::byte> data = bytes_for(format);
    const Handle weight = made(format, data);
    const Weight twin(cpp_format, kOut, kIn, data);

    std::int32_t got_format = -1;
    std::int64_t out = -1, in = -1, bytes = -1;
    ASSERT_TRUE(is_ok(attend_weight_shape(weight.get(), &got_format, &out, &in)));
    EXPECT_EQ(got_format, format);
    EXPECT_EQ(out, kOut);
    EXPECT_EQ(in, kIn);
    ASSERT_TRUE(is_ok(attend_weight_shape(weight.get(), nullptr, nullptr, nullptr)));
    ASSERT_TRUE(is_ok(attend_weight_bytes(format, kOut, kIn, &bytes)));
    EXPECT_EQ(bytes, twin.bytes());

    std::vector<float> row(kIn), twin_row(kIn);
    ASSERT_TRUE(is_ok(attend_weight_row(weight.get(), kOut - 1, row.data(), kIn)));
    twin.row(kOut - 1, twin_row.data());
    EXPECT_EQ(std::memcmp(row.data(), twin_row.data(), kIn * sizeof(float)), 0);

    Tensor y(DType::f32, {1, 1, L, kOut}), plain(DType::f32, y.shape());
    Tensor expected(DType::f32, y.shape()), expected_plain(DType::f32, y.shape());
    const attend_tensor cy = seen(y), cplain = seen(plain);
    const attend_projection both[] = {{weight.get(), &cbias, &cy}, {weight.get(), nullptr, &cplain}};
    ASSERT_TRUE(is_ok(attend_project(&cx, both, 2)));
    const Projection twins[] = {{&twin, bias, expected}, {&twin, {}, expected_plain}};
    project(x, twins);
    EXPECT_TRUE(same_bits(y, expected));
    EXPECT_TRUE(same_bits(plain, expected_plain));
    EXPECT_FALSE(same_bits(y, plain));
  }
}

// 2^55 rows of nothing take no time.
TEST(CAbiWeight, EmptyAndHuge) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 55;
  for (const std::int64_t in : {0, 32}) {
    attend_weight* weight = nullptr;
    ASSERT_TRUE(is_ok(attend_weight_create(ATTEND_WEIGHT_Q8_0, 0, in, nullptr, 0, &weight)));
    float number = 0;
    const attend_tensor x{ATTEND_F32, &number, {1, 1, kHuge, in}, {0, 0, 0, 1}};
    const attend_tensor y{ATTEND_F32, nullptr, {1, 1, kHuge, 0}, {0, 0, 0, 1}};
    const attend_projection projections[] = {{weight, nullptr, &y}, {weight, nullptr, &y}};
    EXPECT_TRUE(is_ok(attend_project(&x, projections, 2)));
    attend_weight_free(weight);
  }
}

TEST(CAbiWeight, BadArgumentsAreRefused) {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  const std::vector<std::byte> data = bytes_for(ATTEND_WEIGHT_Q8_0);
  const auto refused = [&](std::int32_t format, std::int64_t out, std::int64_t in, const void* from, std::int64_t bytes,
                           const char* words) {
    attend_weight* weight = nullptr;
    const attend_status status = attend_weight_create(format, out, in, from, bytes, &weight);
    EXPECT_EQ(weight, nullptr);
    return is_refused(status, words);
  };
  const std::int64_t bytes = std::ssize(data);
  for (const std::int32_t format : {-1, 11, 1 << 30}) {
    EXPECT_TRUE(refused(format, kOut, kIn, data.data(), bytes, "format is"));
    EXPECT_TRUE(is_refused(attend_weight_block(format, nullptr, nullptr), "format is"));
  }
  EXPECT_TRUE(refused(ATTEND_WEIGHT_Q8_0, kOut, kIn, data.data(), bytes - 1, "data bytes is"));
  EXPECT_TRUE(refused(ATTEND_WEIGHT_Q8_0, kOut, kIn, nullptr, bytes, "data is null"));
  EXPECT_TRUE(refused(ATTEND_WEIGHT_Q8_0, kOut, kIn, data.data(), -1, "bytes is -1"));
  EXPECT_TRUE(refused(ATTEND_WEIGHT_Q8_0, kOut, kIn - 1, data.data(), bytes, "a multiple of 32"));
  EXPECT_TRUE(refused(ATTEND_WEIGHT_Q8_0, -1, kIn, data.data(), bytes, "shape is [-1"));
  EXPECT_TRUE(refused(ATTEND_WEIGHT_F32, kHuge, kHuge, data.data(), bytes, "Weight"));
  EXPECT_TRUE(is_refused(attend_weight_create(ATTEND_WEIGHT_Q8_0, kOut, kIn, data.data(), bytes, nullptr),
                         "the place for the result is null"));
  EXPECT_TRUE(is_refused(attend_weight_bytes(ATTEND_WEIGHT_F32, 1, 1, nullptr), "bytes is null"));

  const Handle weight = made(ATTEND_WEIGHT_Q8_0, data);
  std::vector<float> row(kIn);
  EXPECT_TRUE(is_refused(attend_weight_row(weight.get(), kOut, row.data(), kIn), "no row 70"));
  EXPECT_TRUE(is_refused(attend_weight_row(weight.get(), -1, row.data(), kIn), "no row -1"));
  EXPECT_TRUE(is_refused(attend_weight_row(weight.get(), 0, row.data(), kIn - 1), "count is 255"));
  EXPECT_TRUE(is_refused(attend_weight_row(weight.get(), 0, nullptr, kIn), "y is null"));
  EXPECT_TRUE(is_refused(attend_weight_row(nullptr, 0, row.data(), kIn), "weight is null"));
  EXPECT_TRUE(is_refused(attend_weight_shape(nullptr, nullptr, nullptr, nullptr), "weight is null"));

  Tensor x = drawn(1, {1, 1, L, kIn}), y(DType::f32, {1, 1, L, kOut}), narrow(DType::f32, {1, 1, L, kOut - 1});
  const attend_tensor cx = seen(x), cy = seen(y), cnarrow = seen(narrow);
  attend_projection projection{weight.get(), nullptr, &cy};
  EXPECT_TRUE(is_refused(attend_project(nullptr, &projection, 1), "x is null"));
  EXPECT_TRUE(is_refused(attend_project(&cx, nullptr, 1), "projections is null"));
  EXPECT_TRUE(is_refused(attend_project(&cx, &projection, -1), "count is -1"));
  EXPECT_TRUE(is_ok(attend_project(&cx, nullptr, 0)));
  projection.y = &cnarrow;
  EXPECT_TRUE(is_refused(attend_project(&cx, &projection, 1), "y shape"));
  projection.y = nullptr;
  EXPECT_TRUE(is_refused(attend_project(&cx, &projection, 1), "y is null"));
  projection = {nullptr, nullptr, &cy};
  EXPECT_TRUE(is_refused(attend_project(&cx, &projection, 1), "weight is null"));
  attend_weight_free(nullptr);
}

}  // namespace
}  // namespace attend
