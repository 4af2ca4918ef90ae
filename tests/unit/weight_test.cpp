// Weights: every format's numbers, sizes and shapes that are refused, what becomes of a weight that is moved.
#include "attend/weight.hpp"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "base/elements.hpp"
#include "support/weights.hpp"
#include "unit/error_of.hpp"

namespace attend::test {
namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

std::vector<float> row_of(const Weight& weight, std::int64_t r) {
  std::vector<float> y(static_cast<std::size_t>(weight.in()));
  weight.row(r, y.data());
  return y;
}

// What the gguf package for Python (0.19) makes of the same bytes: a few numbers, and the FNV-1a hash of all floats.
struct Golden {
  WeightFormat format;
  std::array<float, 5> some;
  std::uint64_t hash;
};
constexpr Golden kGolden[] = {
    {WeightFormat::q4_0, {0.18554688F, -0.1484375F, -0.18554688F, 0.0F, -0.22265625F}, 0x256d9613fcbfb36aU},
    {WeightFormat::q4_1, {0.12097168F, 0.2322998F, -0.10168457F, -0.17590332F, -0.13879395F}, 0xe3a1b1a185c7cb93U},
    {WeightFormat::q5_0, {0.48242188F, -0.5566406F, -0.4453125F, 0.33398438F, -0.5566406F}, 0x608518eac8ed0d2bU},
    {WeightFormat::q5_1, {0.49206543F, -0.10168457F, -0.064575195F, 0.45495605F, 0.34362793F}, 0xdfdb16cb412d17c4U},
    {WeightFormat::q8_0, {-4.267578F, 1.9296875F, 1.1875F, -4.564453F, 4.0078125F}, 0x6c7bc6c4b8e5d9c8U},
    {WeightFormat::q4_k, {10.238647F, 19.515991F, 18.588257F, 0.8342285F, 11.728882F}, 0x2fe4ad9e2ef0da23U},
    {WeightFormat::q5_k, {26.010132F, 27.8656F, 7.4554443F, 1.1311035F, 7.4613037F}, 0xe7878dd8475fb8c1U},
    {WeightFormat::q6_k, {8.126953F, 67.72461F, 4.2304688F, 10.6875F, -29.6875F}, 0xe0b690e821d8d4c2U}};

TEST(Weight, NumbersAreThoseOfTheGgufPackage) {
  for (const Golden& golden : kGolden) {
    const auto [numbers, bytes] = block_of(golden.format);
    std::vector<std::byte> block(static_cast<std::size_t>(bytes));
    for (std::size_t n = 0; n < block.size(); ++n) block[n] = static_cast<std::byte>((n * n * 31 + n * 7 + 3) % 251);
    const bool at_end = golden.format == WeightFormat::q6_k;
    store_element(DType::f16, block.data(), at_end ? 104 : 0, 0.0371);
    if (golden.format == WeightFormat::q4_1 || golden.format == WeightFormat::q5_1 ||
        golden.format == WeightFormat::q4_k || golden.format == WeightFormat::q5_k)
      store_element(DType::f16, block.data(), 1, -0.213);
    const std::vector<float> y = row_of(Weight(golden.format, 1, numbers, block), 0);
    const std::size_t last = y.size() - 1;
    const std::array<float, 5> some = {y[0], y[1], y[17], y[y.size() / 2], y[last]};
    EXPECT_EQ(some, golden.some) << name(golden.format);
    std::uint64_t hash = 0xcbf29ce484222325U;
    for (const float x : y)
      for (int n = 0; n < 4; ++n) hash = (hash ^ (std::bit_cast<std::uint32_t>(x) >> (8 * n) & 255U)) * 0x100000001b3U;
    EXPECT_EQ(hash, golden.hash) << name(golden.format);
  }
}

// Random bytes, and bits of scales that stand for inf, NaN and subnormal numbers too.
TEST(Weight, RowsAreWhatTheReferenceSays) {
  for (const WeightFormat format : kWeightFormats) {
    for (const TestWeight::Scales scales : {TestWeight::Scales::sensible, TestWeight::Scales::any_bits}) {
      for (const std::int64_t out : {1, 63, 64, 65, 150}) {
        const TestWeight w(format, out, 512, 51, scales);
        const Weight weight = w.make();
        std::int64_t different = 0;
        for (std::int64_t r = 0; r < out; ++r) {
          const std::vector<float> y = row_of(weight, r);
          for (std::size_t k = 0; k < y.size(); ++k) {
            const auto expected = static_cast<float>(w.numbers[static_cast<std::size_t>(r) * y.size() + k].value());
            different += std::isnan(expected) ? !std::isnan(y[k]) : y[k] != expected;
          }
        }
        EXPECT_EQ(different, 0) << name(format) << ", " << out << " rows";
      }
    }
  }
}

// The bytes may lie at any address, and are copied.
TEST(Weight, DataIsCopiedFromAnyAddress) {
  for (const WeightFormat format : kWeightFormats) {
    const TestWeight w(format, 3, 256, 52);
    std::vector<std::byte> moved(w.bytes.size() + 1);
    std::memcpy(moved.data() + 1, w.bytes.data(), w.bytes.size());
    const Weight weight(format, 3, 256, std::span(moved).subspan(1));
    std::fill(moved.begin(), moved.end(), std::byte{0});
    for (std::int64_t r = 0; r < 3; ++r) EXPECT_EQ(row_of(weight, r), row_of(w.make(), r)) << name(format);
  }
}

TEST(Weight, KnowsWhatItHolds) {
  for (const WeightFormat format : kWeightFormats) {
    const TestWeight w(format, 130, 768, 53);
    const Weight weight = w.make();
    EXPECT_EQ(weight.format(), format);
    EXPECT_EQ(weight.out(), 130);
    EXPECT_EQ(weight.in(), 768);
    EXPECT_EQ(weight.bytes(), weight_bytes(format, 130, 768));
    // Rows are padded to 192; beside that no format takes more than 3 % more than the file.
    const double file = static_cast<double>(w.bytes.size()) * 192 / 130;
    EXPECT_GE(static_cast<double>(weight.bytes()), file) << name(format);
    EXPECT_LE(static_cast<double>(weight.bytes()), 1.03 * file) << name(format);
  }
}

TEST(Weight, EmptyAndMoved) {
  Weight none;
  EXPECT_EQ(none.out(), 0);
  EXPECT_EQ(none.in(), 0);
  EXPECT_EQ(none.bytes(), 0);
  Weight one = TestWeight(WeightFormat::q4_1, 2, 64, 54).make();
  const std::vector<float> row = row_of(one, 1);
  none = std::move(one);
  EXPECT_EQ(none.out(), 2);
  EXPECT_EQ(row_of(none, 1), row);
  EXPECT_EQ(one.out(), 0);  // NOLINT(bugprone-use-after-move): what is left is an empty weight
  EXPECT_EQ(one.bytes(), 0);
  EXPECT_EQ(error_of([&] { one.row(0, nullptr); }), "Weight::row: there is no row 0 of 0");
  const Weight no_columns(WeightFormat::q8_0, 3, 0, {}), no_rows(WeightFormat::q8_0, 0, 32, {});
  EXPECT_EQ(no_columns.bytes(), 0);
  EXPECT_EQ(no_rows.bytes(), 0);
  no_columns.row(2, nullptr);
}

TEST(Weight, BadSizesAreRefused) {
  const std::vector<std::byte> bytes(144);
  const auto make = [&](WeightFormat format, std::int64_t out, std::int64_t in) {
    return error_of([&] { Weight(format, out, in, bytes); });
  };
  EXPECT_EQ(make(WeightFormat::q4_0, 1, 33), "Weight: in is 33, expected a multiple of 32 (a block of q4_0)");
  EXPECT_EQ(make(WeightFormat::q4_k, 1, 128), "Weight: in is 128, expected a multiple of 256 (a block of q4_k)");
  EXPECT_EQ(make(WeightFormat::q4_k, 2, 256), "Weight: data bytes is 144, expected 288 (q4_k)");
  EXPECT_EQ(make(WeightFormat::f32, 5, 7), "Weight: data bytes is 144, expected 140 (f32)");
  EXPECT_EQ(make(WeightFormat::f32, -1, 7), "Weight: shape is [-1, 7], expected sizes >= 0");
  EXPECT_EQ(make(static_cast<WeightFormat>(99), 1, 1), "Weight: format is 99, expected one of WeightFormat");
  EXPECT_EQ(make(static_cast<WeightFormat>(-1), 1, 1), "Weight: format is -1, expected one of WeightFormat");
  for (const auto& [out, in] :
       {std::pair{kMax, std::int64_t{256}}, {std::int64_t{64}, kMax / 256 * 256}, {kMax, kMax / 256 * 256}}) {
    for (const WeightFormat format : kWeightFormats) {
      EXPECT_NE(make(format, out, in), "") << name(format);
      EXPECT_NE(error_of([&] { weight_bytes(format, out, in); }), "") << name(format);
    }
  }
  EXPECT_EQ(make(WeightFormat::q4_k, 1, 256), "");
  const Weight weight(WeightFormat::q4_k, 1, 256, bytes);
  std::vector<float> y(256);
  EXPECT_EQ(error_of([&] { weight.row(1, y.data()); }), "Weight::row: there is no row 1 of 1");
  EXPECT_EQ(error_of([&] { weight.row(-1, y.data()); }), "Weight::row: there is no row -1 of 1");
  EXPECT_EQ(error_of([&] { weight.row(0, nullptr); }), "Weight::row: y is null, expected room for 256 floats");
}

TEST(Project, BadArgumentsAreRefused) {
  const Weight weight = TestWeight(WeightFormat::q4_1, 5, 64, 55).make();
  std::vector<float> x(3 * 64), y(3 * 5 + 1), z(3 * 5);
  std::vector<double> wide(3 * 64);
  const View in = view_of(std::as_const(x).data(), {1, 1, 3, 64});
  const MutableView out = view_of(y.data(), {1, 1, 3, 5});
  const auto error = [&](View from, Projection p) { return error_of([&] { project(from, {&p, 1}); }); };
  EXPECT_EQ(error(in, {.weight = &weight, .y = out}), "");
  EXPECT_EQ(error(in, {.weight = nullptr, .y = out}), "project: weight is null, expected one");
  EXPECT_EQ(error(view_of(x.data(), {1, 1, 6, 32}), {.weight = &weight, .y = out}),
            "project: x dim is 32, expected 64 (in of the weight)");
  EXPECT_EQ(error(view_of(x.data(), {1, 3, 1, 64}), {.weight = &weight, .y = out}),
            "project: x shape is [1, 3, 1, 64], expected [1, 1, 1, 64]");
  EXPECT_EQ(error(view_of(wide.data(), {1, 1, 3, 64}), {.weight = &weight, .y = out}),
            "project: x dtype is f64, expected f32");
  EXPECT_EQ(error(in, {.weight = &weight, .y = view_of(y.data(), {1, 1, 2, 5})}),
            "project: y shape is [1, 1, 2, 5], expected [1, 1, 3, 5]");
  EXPECT_EQ(error(in, {.weight = &weight, .y = view_of(wide.data(), {1, 1, 3, 5})}),
            "project: y dtype is f64, expected f32");
  EXPECT_EQ(error(in, {.weight = &weight, .y = {DType::f32, y.data(), {1, 1, 3, 5}, {0, 0, 1, 3}}}),
            "project: y's last stride is 3, expected 1");
  EXPECT_EQ(error(in, {.weight = &weight, .bias = view_of(z.data(), {1, 1, 1, 4}), .y = out}),
            "project: bias shape is [1, 1, 1, 4], expected [1, 1, 1, 5]");
  EXPECT_EQ(error(in, {.weight = &weight, .bias = view_of(wide.data(), {1, 1, 1, 5}), .y = out}),
            "project: bias dtype is f64, expected f32");
  EXPECT_EQ(error(in, {.weight = &weight, .y = view_of(x.data(), {1, 1, 3, 5})}),
            "project: y shares memory with x, expected a place of its own");
  EXPECT_EQ(error(in, {.weight = &weight, .bias = view_of(y.data() + 2, {1, 1, 1, 5}), .y = out}),
            "project: y shares memory with a bias, expected a place of its own");
  const Projection two[] = {{.weight = &weight, .y = out},
                            {.weight = &weight, .y = view_of(y.data() + 1, {1, 1, 3, 5})}};
  EXPECT_EQ(error_of([&] { project(in, two); }),
            "project: y shares memory with another y, expected a place of its own");
  EXPECT_EQ(error_of([&] { project(in, {}); }), "");
}

// No rows, no columns, nothing to sum over.
TEST(Project, EmptySizes) {
  std::vector<float> x(64), y(3, -1.0F), bias = {1, 2, 3};
  const Weight no_columns(WeightFormat::q8_0, 3, 0, {}), no_rows(WeightFormat::q8_0, 0, 64, {}), none;
  Projection p{.weight = &no_columns, .bias = view_of(bias.data(), {1, 1, 1, 3}), .y = view_of(y.data(), {1, 1, 1, 3})};
  project(view_of(x.data(), {1, 1, 1, 0}), {&p, 1});
  EXPECT_EQ(y, bias);
  for (const WeightFormat format : {WeightFormat::q8_0, WeightFormat::f32}) {  // many rows of no columns lie nowhere
    const Weight empty(format, 3, 0, {});
    std::vector<float> rows(9, -1.0F);
    p = {.weight = &empty, .bias = view_of(bias.data(), {1, 1, 1, 3}), .y = view_of(rows.data(), {1, 1, 3, 3})};
    project({DType::f32, x.data(), {1, 1, 3, 0}, {kMax, kMax, kMax, kMax}}, {&p, 1});
    EXPECT_EQ(rows, (std::vector<float>{1, 2, 3, 1, 2, 3, 1, 2, 3}));
  }
  p = {.weight = &no_rows, .y = view_of(y.data(), {1, 1, 1, 0})};
  project(view_of(x.data(), {1, 1, 1, 64}), {&p, 1});
  p = {.weight = &none, .y = view_of(y.data(), {1, 1, 1, 0})};
  project(view_of(x.data(), {1, 1, 1, 0}), {&p, 1});
  const Weight weight = TestWeight(WeightFormat::q8_0, 3, 64, 56).make();
  p = {.weight = &weight, .y = {DType::f32, nullptr, {1, 1, 0, 3}}};
  project({DType::f32, nullptr, {1, 1, 0, 64}}, {&p, 1});
  EXPECT_EQ(y, bias);
}

}  // namespace
}  // namespace attend::test
