// Tests of base: checked sizes, argument checks, the half formats, random numbers, tensors.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "attend/tensor.hpp"
#include "base/check.hpp"
#include "base/checked.hpp"
#include "base/elements.hpp"
#include "base/random.hpp"
#include "unit/error_of.hpp"

namespace attend {
namespace {

using test::error_of;

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// ---- Sizes ----

TEST(CheckedProduct, MultipliesUpToTheLargest) {
  EXPECT_EQ(checked_product("x", {}), 1);
  EXPECT_EQ(checked_product("x", {2, 3, 7}), 42);
  EXPECT_EQ(checked_product("x", {kMax, 1}), kMax);
  EXPECT_EQ(checked_product("x", {std::int64_t{1} << 31, std::int64_t{1} << 31}), std::int64_t{1} << 62);
  EXPECT_EQ(checked_product("x", {kMax, kMax, 0}), 0);
  EXPECT_EQ(checked_product("x", {0, kMax, kMax}), 0);
}

TEST(CheckedProduct, RefusesWhatDoesNotFit) {
  EXPECT_EQ(error_of([] { checked_product("bytes", {std::int64_t{1} << 62, 2}); }),
            "bytes is 4611686018427387904 x 2, expected a product below 2^63");
  EXPECT_NE(error_of([] { checked_product("x", {std::int64_t{1} << 32, std::int64_t{1} << 32}); }), "");  // wraps to 0
  EXPECT_NE(error_of([] { checked_product("x", {std::int64_t{1} << 32, std::int64_t{1} << 32, 5}); }), "");
  EXPECT_NE(error_of([] { checked_product("x", {kMax, kMax}); }), "");  // wraps to 1
  EXPECT_EQ(error_of([] { checked_product("rows", {3, -2}); }), "rows is 3 x -2, expected no negative factor");
  EXPECT_NE(error_of([] { checked_product("x", {-1, -1}); }), "");
  EXPECT_NE(error_of([] { checked_product("x", {0, -1}); }), "");
}

TEST(Strides, FollowTheLayout) {
  EXPECT_EQ(contiguous_strides({2, 3, 4, 5}), (Strides{60, 20, 5, 1}));
  EXPECT_EQ(length_major_strides({2, 3, 4, 5}), (Strides{60, 5, 15, 1}));
  for (const auto& strides : {contiguous_strides, length_major_strides}) {
    EXPECT_NE(error_of([&] { strides({1, kMax, kMax, 4}); }), "");
    EXPECT_NE(error_of([&] { strides({kMax, 2, 1, 1}); }), "");
    EXPECT_NE(error_of([&] { strides({1, -1, 2, 2}); }), "");
  }
}

// ---- Checks ----

TEST(Check, EqualNamesBothSides) {
  EXPECT_EQ(error_of([] { check_equal("attention", "v heads", 2, 2); }), "");
  EXPECT_EQ(error_of([] { check_equal("attention", "v heads", 4, 2); }), "attention: v heads is 4, expected 2");
  EXPECT_EQ(error_of([] { check_equal("attention", "v heads", 4, 2, "k heads"); }),
            "attention: v heads is 4, expected 2 (k heads)");
  EXPECT_EQ(error_of([] { check_shape("op", "q", {1, 2, 3, 4}, {1, 2, 3, 4}); }), "");
  EXPECT_EQ(error_of([] { check_shape("op", "q", {1, 2, 3, 4}, {1, 2, 3, 5}); }),
            "op: q shape is [1, 2, 3, 4], expected [1, 2, 3, 5]");
  EXPECT_EQ(error_of([] { check_dtype("op", "q", DType::f16, DType::f16); }), "");
  EXPECT_EQ(error_of([] { check_dtype("op", "q", DType::f16, DType::f32); }), "op: q dtype is f16, expected f32");
}

TEST(Check, ReadableViews) {
  const float x[64] = {};
  const auto readable = [&](const Shape& shape, const Strides& strides, const void* data, DType dtype) {
    return error_of([&] { check_readable("op", "x", View{dtype, data, shape, strides}); });
  };
  EXPECT_EQ(readable({2, 2, 4, 4}, {32, 16, 4, 1}, x, DType::f32), "");
  EXPECT_EQ(readable({2, 2, 4, 4}, {0, 0, 0, 0}, x, DType::f32), "");
  EXPECT_EQ(readable({2, 2, 4, 4}, {-32, 16, -4, 1}, x, DType::f32), "");
  EXPECT_EQ(readable({1, 1, 1, 1}, {kMin, kMax, kMin, kMax}, x, DType::f32),
            "op: x shape is [1, 1, 1, 1] with "
            "strides [-9223372036854775808, 9223372036854775807, -9223372036854775808, 9223372036854775807], "
            "expected offsets below 2^63 bytes");
  EXPECT_EQ(readable({1, 1, 1, 1}, {kMax, kMax, -kMax, kMax}, x, DType::f32), "");
  EXPECT_EQ(readable({0, 2, 4, 4}, {kMin, kMax, 4, 1}, nullptr, DType::f32), "");  // nothing is read

  EXPECT_EQ(readable({2, 2, 4, 4}, {32, 16, 4, 1}, nullptr, DType::f32),
            "op: x data is null, expected a pointer to [2, 2, 4, 4] elements");
  EXPECT_EQ(readable({2, -1, 4, 4}, {32, 16, 4, 1}, x, DType::f32),
            "op: x shape is [2, -1, 4, 4], expected sizes >= 0");
  EXPECT_EQ(readable({0, -1, 4, 4}, {32, 16, 4, 1}, x, DType::f32),
            "op: x shape is [0, -1, 4, 4], expected sizes >= 0");
  EXPECT_EQ(readable({1, 1, 1, 1}, {1, 1, 1, 1}, x, static_cast<DType>(9)),
            "op: x dtype is 9, expected f32, f16, bf16 or f64");
  // The product of the sizes, with and without the element size.
  EXPECT_NE(readable({kMax, 2, 1, 1}, {0, 0, 0, 0}, x, DType::f32), "");
  EXPECT_EQ(readable({std::int64_t{1} << 61, 1, 1, 1}, {0, 0, 0, 0}, x, DType::f32),
            "op: x bytes is 2305843009213693952 x 1 x 1 x 1 x 4, expected a product below 2^63");
  EXPECT_EQ(readable({std::int64_t{1} << 61, 1, 1, 1}, {0, 0, 0, 0}, x, DType::bf16), "");
  // Offsets: one dimension, the element size, the sum of dimensions.
  EXPECT_NE(readable({3, 1, 1, 1}, {kMax / 2 + 1, 0, 0, 0}, x, DType::f32), "");
  EXPECT_NE(readable({2, 1, 1, 1}, {kMax / 4 + 1, 0, 0, 0}, x, DType::f32), "");
  EXPECT_EQ(readable({2, 1, 1, 1}, {kMax / 4, 0, 0, 0}, x, DType::f32), "");
  EXPECT_EQ(readable({2, 1, 1, 1}, {-(kMax / 4), 0, 0, 0}, x, DType::f32), "");
  EXPECT_NE(readable({2, 2, 1, 1}, {kMax / 4, 1, 0, 0}, x, DType::f32), "");
  EXPECT_NE(readable({2, 1, 1, 1}, {kMin, 0, 0, 0}, x, DType::f32), "");
}

TEST(Check, WritableViewsHaveNoTwoElementsInOnePlace) {
  float x[512] = {};
  const auto writable = [&](const Shape& shape, const Strides& strides) {
    return error_of([&] { check_writable("op", "out", MutableView{DType::f32, x, shape, strides}); });
  };
  EXPECT_EQ(writable({2, 3, 4, 5}, contiguous_strides({2, 3, 4, 5})), "");
  EXPECT_EQ(writable({2, 3, 4, 5}, length_major_strides({2, 3, 4, 5})), "");
  EXPECT_EQ(writable({2, 3, 4, 5}, {1, 2, 6, 24}), "");
  EXPECT_EQ(writable({2, 3, 4, 5}, {-60, 20, -5, 1}), "");
  EXPECT_EQ(writable({1, 3, 1, 5}, {0, 5, 0, 1}), "");  // a dimension of size 1 may have any stride
  EXPECT_EQ(writable({0, 3, 4, 5}, {0, 0, 0, 0}), "");  // nothing is written
  EXPECT_EQ(writable({1, 1, 4, 5}, {0, 0, 8, 1}), "");  // gaps
  EXPECT_EQ(writable({2, 3, 4, 5}, {0, 20, 5, 1}),
            "op: out shape is [2, 3, 4, 5] with strides [0, 20, 5, 1], expected every element in a place of its own");
  EXPECT_NE(writable({1, 1, 1, 2}, {0, 0, 0, 0}), "");
  EXPECT_NE(writable({1, 1, 4, 5}, {0, 0, 4, 1}), "");  // one short: the next row starts on the last element
  EXPECT_NE(writable({1, 1, 4, 5}, {0, 0, -4, 1}), "");
  EXPECT_NE(writable({2, 3, 4, 5}, {59, 20, 5, 1}), "");
  EXPECT_NE(writable({1, 2, 2, 1}, {0, 7, 7, 1}), "");
  EXPECT_NE(error_of([] { check_writable("op", "out", MutableView{DType::f32, nullptr, {1, 1, 1, 1}}); }), "");
}

// ---- The half formats ----

// A binary format by its definition, evaluated in double.
struct Format {
  int mantissa_bits, exponent_bits;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  bool is_nan(unsigned bits) const { return (bits & 0x7fffU) > infinity(); }
  unsigned infinity() const { return ((1U << exponent_bits) - 1) << mantissa_bits; }
  double value(unsigned bits) const {
    const double sign = (bits & 0x8000U) != 0 ? -1 : 1;
    const int exponent = static_cast<int>((bits & 0x7fffU) >> mantissa_bits);
    const int mantissa = static_cast<int>(bits & ((1U << mantissa_bits) - 1));
    if ((bits & 0x7fffU) == infinity()) return sign * kInfinity;
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias() - mantissa_bits);
    return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias() - mantissa_bits);
  }
};
constexpr Format kF16{10, 5};
constexpr Format kBF16{7, 8};

template <class Half>
Half rounded(float x) {
  if constexpr (std::is_same_v<Half, Float16>) {
    return to_float16(x);
  } else {
    return to_bfloat16(x);
  }
}

template <class Half>
void check_every_pattern(const Format& format) {
  for (unsigned bits = 0; bits < 0x10000U; ++bits) {
    const Half half{static_cast<std::uint16_t>(bits)};
    const float x = to_float(half);
    const unsigned back = rounded<Half>(x).bits;
    if (format.is_nan(bits)) {
      const unsigned quiet = 1U << (format.mantissa_bits - 1);
      ASSERT_TRUE(std::isnan(x)) << bits;
      ASSERT_EQ(back, bits | quiet) << "sign and payload of NaN " << bits;
    } else {
      ASSERT_EQ(static_cast<double>(x), format.value(bits)) << bits;
      ASSERT_EQ(std::signbit(x), (bits & 0x8000U) != 0) << bits;
      ASSERT_EQ(back, bits);
    }
  }
}

// Between each number and the next one away from zero: the middle goes to even, either side of it to the nearer one.
template <class Half>
void check_every_middle(const Format& format, DType dtype) {
  for (unsigned bits = 0; bits < 0x10000U; ++bits) {
    if ((bits & 0x7fffU) >= format.infinity()) continue;
    const double low = format.value(bits);
    // Past the largest number, infinity stands where the next one would.
    const double step = std::abs(low - format.value((bits & 0x7fffU) == 0 ? bits + 1 : bits - 1));
    const bool last = ((bits + 1) & 0x7fffU) == format.infinity();
    const double high = last ? low + std::copysign(step, low) : format.value(bits + 1);
    const double middle = (low + high) / 2;
    const unsigned even = (bits & 1U) == 0 ? bits : bits + 1;

    const float m = static_cast<float>(middle);
    ASSERT_EQ(static_cast<double>(m), middle);
    ASSERT_EQ(rounded<Half>(m).bits, even) << bits;
    ASSERT_EQ(rounded<Half>(std::nextafter(m, 0.0F)).bits, bits) << bits;
    ASSERT_EQ(rounded<Half>(std::nextafter(m, m * HUGE_VALF)).bits, bits + 1) << bits;

    // A double just off the middle is rounded once: by way of float it would first fall onto the middle.
    Half stored;
    store_element(dtype, &stored, 0, std::nextafter(middle, 0.0));
    ASSERT_EQ(stored.bits, bits);
    store_element(dtype, &stored, 0, std::nextafter(middle, middle * HUGE_VAL));
    ASSERT_EQ(stored.bits, bits + 1);
    store_element(dtype, &stored, 0, middle);
    ASSERT_EQ(stored.bits, even);
  }
}

TEST(HalfFormats, EveryFloat16PatternGoesThere) {
  check_every_pattern<Float16>(kF16);
}
TEST(HalfFormats, EveryBFloat16PatternGoesThere) {
  check_every_pattern<BFloat16>(kBF16);
}
TEST(HalfFormats, Float16RoundsToNearestEven) {
  check_every_middle<Float16>(kF16, DType::f16);
}
TEST(HalfFormats, BFloat16RoundsToNearestEven) {
  check_every_middle<BFloat16>(kBF16, DType::bf16);
}

TEST(HalfFormats, ExtremesOverflowAndUnderflow) {
  EXPECT_EQ(to_float16(65504.0F).bits, 0x7bff);
  EXPECT_EQ(to_float16(65519.99F).bits, 0x7bff);
  EXPECT_EQ(to_float16(65520.0F).bits, 0x7c00);
  EXPECT_EQ(to_float16(-1e30F).bits, 0xfc00);
  EXPECT_EQ(to_float16(HUGE_VALF).bits, 0x7c00);
  EXPECT_EQ(to_float16(1e-40F).bits, 0);
  EXPECT_EQ(to_float16(-0x1p-25F).bits, 0x8000);
  EXPECT_EQ(to_bfloat16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(to_bfloat16(-HUGE_VALF).bits, 0xff80);
  BFloat16 stored;
  store_element(DType::bf16, &stored, 0, 1e300);
  EXPECT_EQ(stored.bits, 0x7f80);
  store_element(DType::bf16, &stored, 0, -1e-300);
  EXPECT_EQ(stored.bits, 0x8000);
  store_element(DType::bf16, &stored, 0, std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(std::isnan(to_float(stored)));
}

TEST(Elements, LoadAndStoreMisalignedMemory) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64}) {
    std::vector<char> bytes(64, 'x');
    void* odd = bytes.data() + 1;
    store_element(dtype, odd, 2, -1.5);
    store_element(dtype, odd, 3, 0.25);
    EXPECT_EQ(load_element(dtype, odd, 2), -1.5) << name(dtype);
    EXPECT_EQ(load_element(dtype, odd, 3), 0.25) << name(dtype);
    EXPECT_EQ(bytes[static_cast<std::size_t>(2 * size_of(dtype))], 'x');
    EXPECT_EQ(bytes[static_cast<std::size_t>(4 * size_of(dtype)) + 1], 'x');
  }
  double x[6] = {0, 1, 2, 3, 4, 5};
  const View reversed{DType::f64, x + 5, {1, 1, 3, 2}, {0, 0, -2, -1}};
  EXPECT_EQ(load(reversed, 0, 0, 0, 1), 4);
  EXPECT_EQ(load(reversed, 0, 0, 2, 0), 1);
}

// ---- Random numbers ----

TEST(Philox, KnownAnswers) {  // from Random123's kat_vectors
  using Words = std::array<std::uint32_t, 4>;
  EXPECT_EQ(philox({0, 0, 0, 0}, 0), (Words{0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U}));
  EXPECT_EQ(philox({0xffffffffU, 0xffffffffU, 0xffffffffU, 0xffffffffU}, 0xffffffffffffffffU),
            (Words{0x408f276dU, 0x41c83b0eU, 0xa20bc7c6U, 0x6d5451fdU}));
  EXPECT_EQ(philox({0x243f6a88U, 0x85a308d3U, 0x13198a2eU, 0x03707344U}, 0x299f31d0a4093822U),
            (Words{0xd16cfe09U, 0x94fdccebU, 0x5001e420U, 0x24126ea1U}));
}

TEST(Dropout, BitsAreWordsOfPhilox) {
  for (std::int64_t j = 0; j < 9; ++j) {
    const auto words = philox({static_cast<std::uint32_t>(j / 4), 7, 3, 2}, 99);
    EXPECT_EQ(dropout_bits(99, 2, 3, 7, j), words[static_cast<std::size_t>(j % 4)]);
  }
}

// Every bit of an element's number counts, and no stream is another's.
TEST(Dropout, BitsOfElementsAreWordsOfPhilox) {
  for (const std::uint64_t index :
       {std::uint64_t{0}, std::uint64_t{5}, (std::uint64_t{1} << 34) + 6, ~std::uint64_t{0}}) {
    const std::uint64_t counter = index >> 2;
    const auto words =
        philox({static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32), 2, 0xffffffffU}, 99);
    EXPECT_EQ(element_dropout_bits(99, index), words[index & 3]);
  }
  const auto drawn = philox({5, 1, 0, 0xffffffffU}, 11), of_normal = philox({5, 1, 1, 0xffffffffU}, 11);
  const std::uint64_t index = (std::uint64_t{1} << 32) + 5;
  EXPECT_EQ(uniform(11, index), (drawn[0] >> 8) * 0x1p-24);
  const double angle = 2 * M_PI * ((of_normal[1] >> 8) * 0x1p-24);
  EXPECT_DOUBLE_EQ(normal(11, index), std::sqrt(-2 * std::log1p(-((of_normal[0] >> 8) * 0x1p-24))) * std::cos(angle));
}

TEST(Dropout, ThresholdIsTheProbability) {
  EXPECT_EQ(dropout_threshold(0), 0U);
  EXPECT_EQ(dropout_threshold(0.5), 0x80000000U);
  EXPECT_EQ(dropout_threshold(0.1), 429496730U);  // 429496729.6
  EXPECT_EQ(dropout_threshold(std::nextafter(1.0, 0.0)), 0xffffffffU);
  int dropped = 0;
  for (std::int64_t i = 0; i < 100; ++i) {
    for (std::int64_t j = 0; j < 100; ++j) dropped += dropout_bits(5, 0, 1, i, j) < dropout_threshold(0.3) ? 1 : 0;
  }
  EXPECT_NEAR(dropped, 3000, 5 * std::sqrt(10000 * 0.3 * 0.7));  // five standard deviations
}

TEST(Random, UniformAndNormalHaveTheirMoments) {
  const int n = 20000;
  double u1 = 0, u2 = 0, z1 = 0, z2 = 0, z4 = 0, uz = 0;
  for (int index = 0; index < n; ++index) {
    const double u = uniform(11, static_cast<std::uint64_t>(index));
    const double z = normal(11, static_cast<std::uint64_t>(index));
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    ASSERT_EQ(u * 0x1p24, std::floor(u * 0x1p24));
    ASSERT_TRUE(std::isfinite(z));
    u1 += u / n;
    u2 += u * u / n;
    z1 += z / n;
    z2 += z * z / n;
    z4 += z * z * z * z / n;
    uz += (u - 0.5) * z / n;
  }
  EXPECT_NEAR(u1, 0.5, 0.01);
  EXPECT_NEAR(u2, 1.0 / 3, 0.01);
  EXPECT_NEAR(z1, 0, 0.035);
  EXPECT_NEAR(z2, 1, 0.05);
  EXPECT_NEAR(z4, 3, 0.35);
  EXPECT_NEAR(uz, 0, 0.02);
  EXPECT_EQ(uniform(11, 5), uniform(11, 5));
  EXPECT_NE(uniform(11, 5), uniform(12, 5));
  EXPECT_NE(uniform(11, 5), uniform(11, 5 + (std::uint64_t{1} << 32)));
}

// ---- Tensors ----

TEST(DTypes, NamesAndSizes) {
  EXPECT_STREQ(name(DType::f32), "f32");
  EXPECT_STREQ(name(DType::f16), "f16");
  EXPECT_STREQ(name(DType::bf16), "bf16");
  EXPECT_STREQ(name(DType::f64), "f64");
  EXPECT_EQ(size_of(DType::f32), 4);
  EXPECT_EQ(size_of(DType::f16), 2);
  EXPECT_EQ(size_of(DType::bf16), 2);
  EXPECT_EQ(size_of(DType::f64), 8);
  EXPECT_STREQ(name(static_cast<DType>(7)), "unknown");
  EXPECT_EQ(error_of([] { size_of(static_cast<DType>(7)); }), "size_of: dtype is 7, expected f32, f16, bf16 or f64");
}

TEST(Tensors, OwnZeroedAlignedMemory) {
  Tensor x(DType::bf16, {2, 3, 4, 5});
  EXPECT_EQ(x.size(), 120);
  EXPECT_EQ(x.bytes(), 240);
  EXPECT_FALSE(x.empty());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(x.view().data) % 64, 0U);
  EXPECT_EQ(x.view().strides, contiguous_strides({2, 3, 4, 5}));
  for (std::int64_t i = 0; i < x.size(); ++i) ASSERT_EQ(x.data<BFloat16>()[i].bits, 0);
  EXPECT_EQ(error_of([&] { x.data<float>(); }), "Tensor::data: tensor dtype is bf16, expected f32");
  EXPECT_TRUE(Tensor().empty());
  EXPECT_EQ(Tensor().size(), 0);
}

TEST(Tensors, WithoutElementsAreStillTensors) {
  const Tensor x(DType::f32, {2, 0, 4, 5});
  EXPECT_FALSE(x.empty());
  EXPECT_EQ(x.size(), 0);
  EXPECT_FALSE(x.clone().empty());
  EXPECT_EQ(Tensor(DType::f32, {0, 1, kMax, 1}).size(), 0);
  EXPECT_EQ(Tensor(DType::f32, {std::int64_t{1} << 40, std::int64_t{1} << 40, 0, 1}).size(), 0);
}

TEST(Tensors, CloneAndMove) {
  Tensor x(DType::f64, {1, 1, 2, 2});
  x.data<double>()[3] = 7;
  Tensor y = x.clone();
  x.data<double>()[3] = 8;
  EXPECT_EQ(y.data<double>()[3], 7);
  const void* place = y.view().data;
  const Tensor z = std::move(y);
  EXPECT_EQ(z.view().data, place);
  EXPECT_TRUE(y.empty());  // NOLINT(bugprone-use-after-move): what is promised of it
  EXPECT_EQ(y.size(), 0);
  x = z.clone();
  EXPECT_EQ(x.data<double>()[3], 7);
  EXPECT_TRUE(Tensor().clone().empty());
}

TEST(Tensors, RefuseSizesThatDoNotFit) {
  EXPECT_NE(error_of([] { Tensor(DType::f32, {kMax, 1, 1, 1}); }), "");
  EXPECT_NE(error_of([] { Tensor(DType::f32, {1, kMax, kMax, 1}); }), "");
  EXPECT_NE(error_of([] { Tensor(DType::f64, {1, 1, std::int64_t{1} << 60, 1}); }), "");
  EXPECT_NE(error_of([] { Tensor(DType::f32, {1, 1, -1, 1}); }), "");
  EXPECT_NE(error_of([] { Tensor(static_cast<DType>(5), {1, 1, 1, 1}); }), "");
}

// Packed projections share a stretch of memory and no element; a shifted copy shares elements.
TEST(Check, ApartTellsPackedFromShifted) {
  std::vector<float> memory(2 * 5 * (4 + 2 + 2) * 8);
  const std::int64_t row = (4 + 2 + 2) * 8;
  const auto packed = [&](std::int64_t first_head, std::int64_t heads) {
    return MutableView{DType::f32, memory.data() + first_head * 8, {2, heads, 5, 8}, {5 * row, 8, row, 1}};
  };
  EXPECT_NO_THROW(check_apart("op", "dq", packed(0, 4), "dk", packed(4, 2)));
  EXPECT_NO_THROW(check_apart("op", "dv", packed(6, 2), "dq", packed(0, 4)));
  EXPECT_THROW(check_apart("op", "dk", packed(3, 2), "dq", packed(0, 4)), InvalidArgument);
  EXPECT_THROW(check_apart("op", "dq", packed(0, 4), "dk", packed(3, 2)), InvalidArgument);
  MutableView shifted = packed(0, 4);
  shifted.data = memory.data() + row;
  shifted.shape[2] = 4;
  EXPECT_THROW(check_apart("op", "out", shifted, "q", packed(0, 4)), InvalidArgument);
  MutableView half = packed(0, 4);  // the same memory as another type: told apart by the stretch alone
  half.dtype = DType::f16;
  EXPECT_THROW(check_apart("op", "out", half, "q", packed(0, 4)), InvalidArgument);
  MutableView nothing = packed(0, 4);
  nothing.shape[0] = 0;
  EXPECT_NO_THROW(check_apart("op", "out", nothing, "q", packed(0, 4)));
}

}  // namespace
}  // namespace attend
