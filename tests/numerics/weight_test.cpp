// Projections with weights of every format: within bounds that are derived here, and with the same bits for a row
// however it is computed.
#include "attend/weight.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "attend/runtime.hpp"
#include "base/elements.hpp"
#include "base/random.hpp"
#include "reference/weight.hpp"
#include "support/check.hpp"
#include "support/weights.hpp"

namespace attend::test {
namespace {

using std::int64_t;

std::size_t index(int64_t n) {
  return static_cast<std::size_t>(n);
}

struct ProjectCase {
  int64_t rows, out, in;
};
// Every rest of rows (tiles are of up to six), of columns (tiles of 64), few and many runs of 32.
constexpr ProjectCase kCases[] = {{1, 1, 256},   {2, 63, 256},  {3, 64, 512},   {5, 65, 256},   {6, 192, 256},
                                  {7, 130, 768}, {17, 64, 256}, {100, 70, 256}, {1, 576, 1536}, {4, 192, 2304}};
constexpr ProjectCase kSmallBlockCases[] = {{1, 64, 32}, {5, 3, 96}, {13, 200, 576}};

enum class Inputs { any, exact };

// Standard normal numbers, or ones that int8 holds exactly: whole numbers up to 127, which every run has, times a power
// of two of the run.
std::vector<float> inputs(Inputs kind, int64_t rows, int64_t in, std::uint64_t key) {
  std::vector<float> x(index(rows * in));
  for (std::size_t n = 0; n < x.size(); ++n) {
    if (kind == Inputs::any) {
      x[n] = static_cast<float>(normal(key, n));
      continue;
    }
    const double whole = n % 32 == 7 ? (uniform(key, n) < 0.5 ? -127 : 127) : std::floor(255 * uniform(key, n)) - 127;
    x[n] = static_cast<float>(std::ldexp(whole, static_cast<int>(6 * uniform(key + 1, n / 32)) - 10));
  }
  return x;
}

// What a row of y may be off by, element by element.
//
// Rounding x: each number of a run is off by half a step, scale / 2, and by 2^-15 of a step for the roundings of scale,
// of its inverse and of the product; a run whose largest number is below 1e-35 is taken for zeros.
// Sums: i * d * scale and m * scaled_sum are three roundings each at most, and then pass through the at most 2
// additions of each run, of two roundings where there is no fused multiply-add, and that of the bias: (4 runs + 6)
// 2^-24 of what is summed, in magnitudes. With plain floats, each of `in` products and sums: (2 in + 2) 2^-24.
std::vector<double> bounds(const TestWeight& w, const std::vector<float>& x, int64_t row, Inputs kind,
                           const std::vector<float>& bias) {
  const int64_t in = w.in;
  std::vector<double> step(index(in), 0.0);
  if (w.quantised() && kind == Inputs::any)
    for (int64_t k = 0; k < in; ++k) {
      double most = 0;
      for (int64_t j = k / 32 * 32; j < k / 32 * 32 + 32; ++j)
        most = std::fmax(most, std::abs(static_cast<double>(x[index(row * in + j)])));
      step[index(k)] = most < 1e-35 ? 2e-35 : most / 127;
    }
  const double roundings = w.quantised() ? static_cast<double>(4 * (in / 32) + 6) : static_cast<double>(2 * in + 2);
  std::vector<double> bound(index(w.out));
  for (int64_t o = 0; o < w.out; ++o) {
    double rounded = 0, size = bias.empty() ? 0 : std::abs(static_cast<double>(bias[index(o)]));
    for (int64_t k = 0; k < in; ++k) {
      const auto& number = w.numbers[index(o * in + k)];
      rounded += std::abs(number.value()) * step[index(k)] * (0.5 + 0x1p-15);
      size += (std::abs(number.scaled) + std::abs(number.offset)) *
              (std::abs(static_cast<double>(x[index(row * in + k)])) + step[index(k)]);
    }
    bound[index(o)] = rounded + roundings * 0x1p-24 * size + 1e-40;
  }
  return bound;
}

std::vector<float> run(const Weight& weight, const std::vector<float>& x, int64_t first, int64_t rows,
                       const std::vector<float>& bias = {}) {
  std::vector<float> y(index(rows * weight.out()), std::numeric_limits<float>::quiet_NaN());
  Projection p{.weight = &weight, .y = view_of(y.data(), {1, 1, rows, weight.out()})};
  if (!bias.empty()) p.bias = view_of(bias.data(), {1, 1, 1, weight.out()});
  project(view_of(x.data() + first * weight.in(), {1, 1, rows, weight.in()}), {&p, 1});
  return y;
}

void check(WeightFormat format, const ProjectCase& c, Inputs kind) {
  const TestWeight w(format, c.out, c.in, 21);
  const Weight weight = w.make();
  const std::vector<float> x = inputs(kind, c.rows, c.in, 31);
  std::vector<float> bias;
  if (c.out % 2 == 0)
    for (int64_t o = 0; o < c.out; ++o) bias.push_back(static_cast<float>(normal(41, static_cast<std::uint64_t>(o))));
  const std::vector<float> y = run(weight, x, 0, c.rows, bias);
  std::vector<double> expected(y.size());
  std::optional<View> bias_view;
  if (!bias.empty()) bias_view = view_of(bias.data(), {1, 1, 1, c.out});
  reference::project(view_of(x.data(), {1, 1, c.rows, c.in}), format, w.bytes.data(), bias_view,
                     view_of(expected.data(), {1, 1, c.rows, c.out}));
  double worst = 0;
  for (int64_t r = 0; r < c.rows; ++r) {
    const std::vector<double> bound = bounds(w, x, r, kind, bias);
    for (int64_t o = 0; o < c.out; ++o) {
      const double error = std::abs(static_cast<double>(y[index(r * c.out + o)]) - expected[index(r * c.out + o)]);
      worst = std::isnan(error) ? HUGE_VAL : std::fmax(worst, error / bound[index(o)]);
    }
  }
  EXPECT_LE(worst, 1.0) << name(format) << ", " << c.rows << " rows, [" << c.out << ", " << c.in << "]"
                        << (kind == Inputs::exact ? ", exact inputs" : "");
}

template <class F>
void for_each_case(const F& f) {
  for (const WeightFormat format : kWeightFormats) {
    for (const ProjectCase& c : kCases) f(format, c);
    if (block_of(format).numbers <= 32)
      for (const ProjectCase& c : kSmallBlockCases) f(format, c);
    if (block_of(format).numbers == 1)
      for (const ProjectCase& c : {ProjectCase{3, 5, 7}, ProjectCase{9, 66, 130}}) f(format, c);
  }
}

TEST(Project, WithinTheBoundOfRoundingX) {
  for_each_case([](WeightFormat format, const ProjectCase& c) { check(format, c, Inputs::any); });
}

// Nothing is lost in rounding x here: an error in any one number of any run would stand out.
TEST(Project, ExactUpToRoundingsOfSumsWhereInt8HoldsX) {
  for_each_case([](WeightFormat format, const ProjectCase& c) { check(format, c, Inputs::exact); });
}

// Through an identity every number of x comes back as it was rounded: off by 1/254 of the largest of its run at most.
TEST(Project, NumbersAreRoundedToNearest) {
  const int64_t rows = 5, in = 96, run_bytes = block_of(WeightFormat::q8_0).bytes;
  std::vector<std::byte> bytes(index(in * in / 32 * run_bytes));
  for (int64_t o = 0; o < in; ++o) {
    std::byte* block = bytes.data() + (o * in / 32 + o / 32) * run_bytes;
    store_element(DType::f16, block, 0, 1.0);
    block[2 + o % 32] = std::byte{1};
  }
  const Weight weight(WeightFormat::q8_0, in, in, bytes);
  const std::vector<float> x = inputs(Inputs::any, rows, in, 39), y = run(weight, x, 0, rows);
  for (int64_t n = 0; n < rows * in; n += 32) {
    double most = 0;
    for (int64_t k = n; k < n + 32; ++k) most = std::fmax(most, std::abs(static_cast<double>(x[index(k)])));
    for (int64_t k = n; k < n + 32; ++k)
      EXPECT_NEAR(y[index(k)], x[index(k)], most / 254 * (1 + 0x1p-13)) << "number " << k;
  }
}

TEST(Project, BitsDependOnTheRowAlone) {
  const int before = threads();
  for (const WeightFormat format : kWeightFormats) {
    const int64_t rows = 131, out = 200, in = 768;
    const TestWeight w(format, out, in, 22);
    const Weight weight = w.make();
    const std::vector<float> x = inputs(Inputs::any, rows, in, 32);
    set_threads(1);
    const std::vector<float> all = run(weight, x, 0, rows);
    const auto expect_rows = [&](int64_t first, int64_t count, const std::string& what) {
      const std::vector<float> some = run(weight, x, first, count);
      EXPECT_EQ(std::memcmp(some.data(), all.data() + first * out, some.size() * sizeof(float)), 0)
          << name(format) << ", rows " << first << " to " << first + count << ", " << what;
    };
    for (const int64_t count : {1, 2, 3, 4, 5, 6, 7, 12, 97})
      for (const int64_t first : {int64_t{0}, int64_t{1}, rows - count}) expect_rows(first, count, "one thread");
    for (const int count : {2, 3, 7}) {
      set_threads(count);
      expect_rows(0, rows, std::to_string(count) + " threads");
      expect_rows(5, 1, std::to_string(count) + " threads");
    }
  }
  set_threads(before);
}

// Several weights on one x, of formats that read it in different ways, give what each gives alone.
TEST(Project, TogetherAsAlone) {
  const int64_t rows = 9, in = 512;
  const std::vector<float> x = inputs(Inputs::any, rows, in, 33);
  std::vector<Weight> weights;
  std::vector<std::vector<float>> alone, together;
  for (const WeightFormat format : kWeightFormats) {
    const int64_t out = 40 + 30 * static_cast<int64_t>(weights.size());
    weights.push_back(TestWeight(format, out, in, 23).make());
    alone.push_back(run(weights.back(), x, 0, rows));
    together.emplace_back(index(rows * out), -1.0F);
  }
  std::vector<Projection> projections;
  for (std::size_t n = 0; n < weights.size(); ++n)
    projections.push_back({.weight = &weights[n], .y = view_of(together[n].data(), {1, 1, rows, weights[n].out()})});
  project(view_of(x.data(), {1, 1, rows, in}), projections);
  for (std::size_t n = 0; n < weights.size(); ++n) EXPECT_EQ(together[n], alone[n]) << name(kWeightFormats[n]);
}

// Rows of y apart from each other, x in any layout, everything off its alignment.
TEST(Project, AnyLayout) {
  for (const WeightFormat format : kWeightFormats) {
    const int64_t rows = 7, out = 70, in = 256, y_row = 75;
    const TestWeight w(format, out, in, 24);
    const Weight weight = w.make();
    const std::vector<float> x = inputs(Inputs::any, rows, in, 34);
    const std::vector<float> bias = inputs(Inputs::any, 1, out, 35);
    const std::vector<float> expected = run(weight, x, 0, rows, bias);
    std::vector<std::byte> from(index(rows * in * 2 * 4 + 4)), biases(index(out * 3 * 4 + 1)),
        to(index(rows * y_row * 4 + 1), std::byte{0xA5});
    for (int64_t r = 0; r < rows; ++r)  // rows backwards, every second element
      for (int64_t k = 0; k < in; ++k)
        std::memcpy(from.data() + 3 + ((rows - 1 - r) * in + k) * 8, &x[index(r * in + k)], 4);
    for (int64_t o = 0; o < out; ++o) std::memcpy(biases.data() + 1 + 12 * o, &bias[index(o)], 4);
    const Projection p{.weight = &weight,
                       .bias = View{DType::f32, biases.data() + 1, {1, 1, 1, out}, {0, 0, 0, 3}},
                       .y = {DType::f32, to.data() + 1, {1, 1, rows, out}, {0, 0, y_row, 1}}};
    project({DType::f32, from.data() + 3 + (rows - 1) * in * 8, {1, 1, rows, in}, {0, 0, -2 * in, 2}}, {&p, 1});
    int64_t different = 0, damaged = to[0] != std::byte{0xA5};
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t o = 0; o < y_row; ++o) {
        const std::byte* at = to.data() + 1 + (r * y_row + o) * 4;
        if (o < out)
          different += std::memcmp(at, &expected[index(r * out + o)], 4) != 0;
        else
          damaged += std::any_of(at, at + 4, [](std::byte b) { return b != std::byte{0xA5}; });
      }
    EXPECT_EQ(different, 0) << name(format);
    EXPECT_EQ(damaged, 0) << name(format);
  }
}

TEST(Project, WhatIsNotFiniteStaysInItsRow) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const WeightFormat format : kWeightFormats) {
    const int64_t rows = 8, out = 70, in = 512;
    const TestWeight w(format, out, in, 25);
    const Weight weight = w.make();
    std::vector<float> x = inputs(Inputs::any, rows, in, 36);
    const std::vector<float> before = run(weight, x, 0, rows);
    x[index(1 * in + 0)] = std::numeric_limits<float>::quiet_NaN();
    x[index(3 * in + 300)] = kInf;
    x[index(6 * in + in - 1)] = -kInf;
    const std::vector<float> y = run(weight, x, 0, rows);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t o = 0; o < out; ++o) {
        const float value = y[index(r * out + o)];
        if (r == 1 || r == 3 || r == 6)
          EXPECT_TRUE(w.quantised() ? std::isnan(value) : !std::isfinite(value)) << name(format) << ", row " << r;
        else
          EXPECT_EQ(value, before[index(r * out + o)]) << name(format) << ", row " << r;
      }
  }
}

// The largest and smallest numbers there are: no inf where the result is finite, and rows of next to nothing count as
// zeros.
TEST(Project, EndsOfTheRange) {
  for (const WeightFormat format : kWeightFormats) {
    const int64_t out = 3, in = 256;
    const TestWeight w(format, out, in, 26);
    const Weight weight = w.make();
    for (const float size : {1e-45F, 1e-38F, 1e-34F, 1e30F}) {
      std::vector<float> x = inputs(Inputs::any, 1, in, 37);
      for (float& v : x) v *= size;
      const std::vector<float> y = run(weight, x, 0, 1);
      const std::vector<double> bound = bounds(w, x, 0, Inputs::any, {});
      for (int64_t o = 0; o < out; ++o) {
        double expected = 0;
        for (int64_t k = 0; k < in; ++k)
          expected += w.numbers[index(o * in + k)].value() * static_cast<double>(x[index(k)]);
        EXPECT_LE(std::abs(static_cast<double>(y[index(o)]) - expected), bound[index(o)])
            << name(format) << " " << size;
      }
    }
    std::vector<float> x(index(in), std::numeric_limits<float>::max());
    for (int64_t k = 0; k < in; k += 2) x[index(k)] = -x[index(k)];
    static_cast<void>(run(weight, x, 0, 1));
  }
}

// Every bit pattern of scales, those of inf, NaN and subnormal numbers too: values are what the format says.
TEST(Project, AnyBytesAreWeights) {
  for (const WeightFormat format : kWeightFormats) {
    const int64_t out = 64, in = 512, rows = 3;
    TestWeight w(format, out, in, 27, TestWeight::Scales::any_bits);
    const Weight weight = w.make();
    const std::vector<float> x = inputs(Inputs::exact, rows, in, 38);
    const std::vector<float> y = run(weight, x, 0, rows);
    for (int64_t o = 0; o < out; ++o) {
      double size = 0, expected = 0;
      for (int64_t k = 0; k < in; ++k) {
        const auto& number = w.numbers[index(o * in + k)];
        size += (std::abs(number.scaled) + std::abs(number.offset)) * std::abs(static_cast<double>(x[index(k)]));
        expected += number.value() * static_cast<double>(x[index(k)]);
      }
      if (!(size < 1e30)) {
        EXPECT_FALSE(std::isfinite(y[index(o)]) && std::isnan(size)) << name(format) << ", column " << o;
        continue;
      }
      EXPECT_LE(std::abs(static_cast<double>(y[index(o)]) - expected), static_cast<double>(2 * in + 6) * 0x1p-24 * size)
          << name(format) << ", column " << o;
    }
  }
}

}  // namespace
}  // namespace attend::test
