// Tests of rotary position embedding and its gradient.
#include "attend/rope.hpp"

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>

#include "reference/rope.hpp"
#include "unit/error_of.hpp"
#include "unit/on_every_isa.hpp"
#include "unit/op_testing.hpp"

namespace attend::test::ops {
namespace {

constexpr RopeStyle kStyles[] = {RopeStyle::half_split, RopeStyle::interleaved};

constexpr RopeScaling kScalings[] = {
    {.kind = RopeScaling::Kind::linear, .factor = 4},
    {.kind = RopeScaling::Kind::llama3, .factor = 8, .original_length = 2048},
    {.kind = RopeScaling::Kind::yarn, .factor = 40, .original_length = 4096, .mscale = 0.707, .mscale_all_dim = 1},
};

// The frequencies once more, as the papers put them: a share of each pair is interpolated.
double frequency_of(const RopeOptions& o, std::int64_t pair, std::int64_t R) {
  const RopeScaling& s = o.scaling;
  const double plain = std::pow(o.theta, -2.0 * static_cast<double>(pair) / static_cast<double>(R));
  const double length = static_cast<double>(s.original_length), turns = length * plain / (2 * M_PI);
  double kept = 1;  // the share that is not slowed down
  if (s.kind == RopeScaling::Kind::linear) kept = 0;
  if (s.kind == RopeScaling::Kind::llama3)
    kept = std::min(1.0, std::max(0.0, (turns - s.low_frequency) / (s.high_frequency - s.low_frequency)));
  if (s.kind == RopeScaling::Kind::yarn) {
    const auto at = [&](double rotations) {
      return static_cast<double>(R) * std::log(length / (2 * M_PI * rotations)) / (2 * std::log(o.theta));
    };
    double low = at(s.beta_fast), high = at(s.beta_slow);
    if (s.truncate) low = std::floor(low), high = std::ceil(high);
    low = std::max(low, 0.0), high = std::min(high, static_cast<double>(R - 1));
    kept = 1 - std::min(1.0, std::max(0.0, (static_cast<double>(pair) - low) / (high - low)));
  }
  return plain * kept + plain / s.factor * (1 - kept);
}

double magnitude_of(const RopeScaling& s) {
  if (s.kind != RopeScaling::Kind::yarn) return 1;
  return (0.1 * s.mscale * std::log(s.factor) + 1) / (0.1 * s.mscale_all_dim * std::log(s.factor) + 1);
}

struct RopeCase {
  Shape shape;
  RopeOptions options;
};

std::vector<RopeCase> cases() {
  const std::int64_t far = (std::int64_t{1} << 40) + 12345;
  std::vector<RopeCase> list;
  for (const RopeStyle style : kStyles) {
    list.push_back({{2, 3, 5, 8}, {.style = style}});
    list.push_back({{1, 2, 300, 64}, {.style = style, .theta = 1e6, .first_position = 4000}});
    list.push_back({{1, 1, 4, 12}, {.style = style, .rotary_dim = 6, .positions = {7, -3, 0, 100000}}});
    list.push_back({{2, 1, 2, 2}, {.style = style, .positions = {far, far + 1}}});
    list.push_back({{1, 1, 3, 10}, {.style = style, .rotary_dim = 4, .first_position = far}});
    list.push_back({{1, 1, 3, 7}, {.style = style, .rotary_dim = 2}});
    for (const RopeScaling& scaling : kScalings)
      list.push_back({{1, 2, 3, 32}, {.style = style, .first_position = 5000, .scaling = scaling}});
  }
  return list;
}

// The definition once more, by complex numbers.
std::complex<double> rotated(const View& x, const RopeOptions& o, std::int64_t b, std::int64_t h, std::int64_t i,
                             std::int64_t pair, double direction) {
  const std::int64_t R = o.rotary_dim == 0 ? x.dim() : o.rotary_dim;
  const auto position =
      static_cast<double>(o.positions.empty() ? o.first_position + i : o.positions[static_cast<std::size_t>(i)]);
  const double frequency = frequency_of(o, pair, R);
  const bool split = o.style == RopeStyle::half_split;
  const std::complex<double> z(load(x, b, h, i, split ? pair : 2 * pair),
                               load(x, b, h, i, split ? pair + R / 2 : 2 * pair + 1));
  return z * std::polar(magnitude_of(o.scaling), direction * position * frequency);
}

Tensor expected_rotation(const View& x, const RopeOptions& o, double direction) {
  Tensor y = to_dtype(x, DType::f64);
  const std::int64_t R = o.rotary_dim == 0 ? x.dim() : o.rotary_dim;
  const bool split = o.style == RopeStyle::half_split;
  for_each_element({x.batch(), x.heads(), x.length(), R / 2}, [&](auto b, auto h, auto i, auto pair) {
    const std::complex<double> z = rotated(x, o, b, h, i, pair, direction);
    store(y, b, h, i, split ? pair : 2 * pair, z.real());
    store(y, b, h, i, split ? pair + R / 2 : 2 * pair + 1, z.imag());
  });
  return y;
}

TEST(Rope, RotatesByTheAngleOfThePosition) {
  Tensor x(DType::f32, {1, 1, 3, 2}), y(DType::f32, {1, 1, 3, 2});
  for (std::int64_t i = 0; i < 3; ++i) store(x, 0, 0, i, 0, 1.0);
  for (const RopeStyle style : kStyles) {
    rope(x, y, {.style = style});
    for (std::int64_t i = 0; i < 3; ++i) {
      EXPECT_NEAR(load(y, 0, 0, i, 0), std::cos(static_cast<double>(i)), 1e-7);
      EXPECT_NEAR(load(y, 0, 0, i, 1), std::sin(static_cast<double>(i)), 1e-7);
    }
  }
}

TEST(Rope, MatchesComplexNumbersPerElement) {
  for (const RopeCase& c : cases()) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64}) {
      const Tensor x = random_tensor(dtype, c.shape, 1);
      for (const double direction : {1.0, -1.0}) {
        const Tensor expected = expected_rotation(x, c.options, direction);
        const std::int64_t R = c.options.rotary_dim == 0 ? c.shape[3] : c.options.rotary_dim;
        // cos or sin and its product are rounded to f32 (f64); |u cos| + |v sin| <= |(u, v)|.
        const double unit = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
        const auto bound = [&](auto b, auto h, auto i, auto j) {
          if (j >= R) return 0.0;
          const std::int64_t pair = c.options.style == RopeStyle::half_split ? j % (R / 2) : j / 2;
          const double length = std::abs(rotated(x, c.options, b, h, i, pair, direction));
          const double both = dtype == DType::f64 ? 2 : 1;  // the expectation is rounded as well
          // Another way to the same frequency: a few roundings of it, times the position.
          const double angle = c.options.scaling.kind == RopeScaling::Kind::none ? 0.0 : 8 * 0x1p-53 * 5003;
          return 1.01 * both * ((3 * unit + angle) * length + rounding(dtype, load(expected, b, h, i, j)));
        };
        for (const MemoryLayout layout : kMemoryLayouts) {
          const Strided from(x, layout);
          Strided to(dtype, c.shape, layout), in_place(x, layout);
          if (direction > 0) {
            rope(from.view, to.view, c.options);
            rope(in_place.view, in_place.view, c.options);
          } else {
            rope_backward(from.view, to.view, c.options);
            rope_backward(in_place.view, in_place.view, c.options);
          }
          expect_within(to.view, expected, bound, name(dtype));
          expect_within(in_place.view, expected, bound, std::string("in place ") + name(dtype));
          EXPECT_EQ(to.damaged() + in_place.damaged(), 0);
        }
      }
    }
  }
}

// A table made once has the bits of a call with the options, for every dtype, layout and instruction set.
TEST(Rope, ATableHasTheBitsOfTheOptions) {
  on_every_isa([] {
    for (const RopeCase& c : cases()) {
      const RopeTable table(c.shape[3], c.shape[2], c.options);
      EXPECT_EQ(table.length(), c.shape[2]);
      for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64}) {
        const Tensor x = random_tensor(dtype, c.shape, 9);
        for (const MemoryLayout layout : kMemoryLayouts) {
          const Strided from(x, layout);
          Strided to(x, layout);
          Tensor expected(dtype, c.shape);
          const auto exact = [](auto, auto, auto, auto) { return 0.0; };
          rope(x, expected, c.options);
          rope(from.view, to.view, table);
          expect_within(to.view, expected, exact, "forward");
          rope_backward(x, expected, c.options);
          rope_backward(from.view, to.view, table);
          expect_within(to.view, expected, exact, "backward");
        }
      }
    }
  });
}

TEST(Rope, PartOfATable) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const RopeTable table(16, 40, {.first_position = 100});
    const Tensor x = random_tensor(dtype, {1, 2, 5, 16}, 11);
    Tensor y(dtype, x.shape()), expected(dtype, x.shape());
    rope(x, y, table, 35);
    rope(x, expected, {.first_position = 135});
    EXPECT_TRUE(same_bits(y, expected));
    rope_backward(x, y, table, 7);
    rope_backward(x, expected, {.first_position = 107});
    EXPECT_TRUE(same_bits(y, expected));
  }
}

TEST(Rope, ATableOfOtherFrequenciesAndPositions) {
  RopeFrequencies turns = rope_frequencies(8, 1e4);
  const std::vector<std::int64_t> positions = {3, -1};
  RopeTable table(4, 2);
  table.fill(turns, RopeStyle::interleaved, positions);
  const Tensor x = random_tensor(DType::f32, {1, 3, 2, 10}, 10);
  Tensor y(DType::f32, x.shape()), expected(DType::f32, x.shape());
  rope(x, y, table);
  rope(x, expected, {.style = RopeStyle::interleaved, .rotary_dim = 8, .positions = positions});
  EXPECT_TRUE(same_bits(y, expected));
  EXPECT_EQ(error_of([&] { rope(view_of(x.data<float>(), {1, 3, 1, 10}), y, table); }),
            "rope: y shape is [1, 3, 2, 10], expected [1, 3, 1, 10]");
  Tensor longer(DType::f32, {1, 3, 3, 10}), thin(DType::f32, {1, 1, 2, 6});
  EXPECT_EQ(error_of([&] { rope(longer, longer, table); }),
            "rope: x has 3 rows from 0 on, expected rows 0 to 2 of the table");
  EXPECT_EQ(error_of([&] { rope(x, y, table, 1); }), "rope: x has 2 rows from 1 on, expected rows 0 to 2 of the table");
  EXPECT_EQ(error_of([&] { rope_backward(x, y, table, -1); }),
            "rope_backward: dy has 2 rows from -1 on, expected rows 0 to 2 of the table");
  EXPECT_EQ(error_of([&] { rope_backward(thin, thin, table); }),
            "rope_backward: dy dim is 6, expected at least 8 (the table rotates as many)");
  EXPECT_EQ(error_of([&] { RopeTable(7, 2); }),
            "RopeTable: rotary_dim is 7, expected an even number from 0 to 7 (dim of the rows)");
  EXPECT_EQ(error_of([&] { RopeTable(8, -1); }), "RopeTable: length is -1, expected at least 0");
}

TEST(Rope, GradientByCentralDifferences) {
  for (const RopeCase& c : cases()) {
    if (c.shape[2] > 10) continue;
    Tensor x = random_tensor(DType::f64, c.shape, 2);
    const Tensor dy = random_tensor(DType::f64, c.shape, 3);
    Tensor dx(DType::f64, c.shape), y(DType::f64, c.shape);
    rope_backward(dy, dx, c.options);
    const auto loss = [&] {
      rope(x, y, c.options);
      return dot(y, dy);
    };
    expect_gradient(dx, x, loss, "x");
  }
}

TEST(Rope, TheMagnitudeOfYarn) {
  const auto magnitude = [](RopeScaling s) {
    s.kind = RopeScaling::Kind::yarn;
    s.original_length = 64;
    return rope_frequencies(8, 1e4, s).magnitude;
  };
  const double log40 = std::log(40.0);
  EXPECT_NEAR(magnitude({.factor = 40}), 0.1 * log40 + 1, 1e-15);
  EXPECT_EQ(magnitude({.factor = 0.5}), 1);
  EXPECT_EQ(magnitude({.factor = 40, .attention_factor = 0.25}), 0.25);
  EXPECT_EQ(magnitude({.factor = 40, .mscale = 1, .mscale_all_dim = 1}), 1);
  EXPECT_NEAR(magnitude({.factor = 40, .mscale = 0.707, .mscale_all_dim = 1}), (0.0707 * log40 + 1) / (0.1 * log40 + 1),
              1e-15);
  EXPECT_NEAR(magnitude({.factor = 40, .mscale = 0.707}), 0.1 * log40 + 1, 1e-15);  // one of them counts for nothing
}

// The share of each pair's interpolation, read off the frequencies: 0 keeps its speed, 1 slows it down by the factor.
std::vector<double> ramp_of(std::int64_t rotary_dim, double theta, const RopeScaling& scaling) {
  const RopeFrequencies plain = rope_frequencies(rotary_dim, theta),
                        scaled = rope_frequencies(rotary_dim, theta, scaling);
  std::vector<double> shares;
  for (std::size_t i = 0; i < plain.per_position.size(); ++i)
    shares.push_back((1 - scaled.per_position[i] / plain.per_position[i]) / (1 - 1 / scaling.factor));
  return shares;
}

// The pair that makes r rotations over the original length is R ln(length / (2 pi r)) / (2 ln theta): the ramp rises
// from that of beta_fast, but from pair 0 at the earliest, to that of beta_slow, but to R - 1 at the latest.
TEST(Rope, TheEndsOfYarnsRamp) {
  const auto expect_ramp = [](const std::vector<double>& got, double low, double high) {
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i], std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0), 1e-12) << i;
  };
  using Kind = RopeScaling::Kind;
  RopeScaling s{.kind = Kind::yarn, .factor = 4, .original_length = 1 << 20, .beta_fast = 1e5};
  expect_ramp(ramp_of(32, 100, s), 1, 31);  // from 1.78 to 41.8
  s.truncate = false;
  const double per_e = 32 / (2 * std::log(100.0)), low = per_e * std::log((1 << 20) / (2e5 * M_PI));
  expect_ramp(ramp_of(32, 100, s), low, 31);
  s = {.kind = Kind::yarn, .factor = 4, .original_length = 100};
  expect_ramp(ramp_of(32, 1e4, s), 0, 5);  // from -1.2 to 4.8
  s.truncate = false;
  expect_ramp(ramp_of(32, 1e4, s), 0, 16 * std::log(100 / (2 * M_PI)) / std::log(1e4));
  s = {.kind = Kind::yarn, .factor = 4, .original_length = 6};  // from -6.1 to -0.08: both ends are pair 0
  const std::vector<double> step = ramp_of(32, 1e4, s);
  for (std::size_t i = 0; i < step.size(); ++i) EXPECT_NEAR(step[i], i == 0 ? 0 : 1, 1e-12) << i;
}

TEST(Rope, LlamasRampRisesBetweenItsTwoFrequencies) {
  // Pair i makes 1000 / 2 pi * 10^(-i / 2) rotations: 159, 50.3, 15.9, 5.03, 1.59, 0.5, ...
  const RopeScaling s{.kind = RopeScaling::Kind::llama3,
                      .factor = 8,
                      .original_length = 1000,
                      .low_frequency = 1.5,
                      .high_frequency = 20};
  const std::vector<double> got = ramp_of(16, 1e4, s);
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double rotations = 1000 / (2 * M_PI) * std::pow(10, -0.5 * static_cast<double>(i));
    EXPECT_NEAR(got[i], 1 - std::clamp((rotations - 1.5) / 18.5, 0.0, 1.0), 1e-12) << i;
  }
}

TEST(Rope, TheLimitsOfItsOptions) {
  EXPECT_TRUE(rope_frequencies(0, 1e4).per_position.empty());
  EXPECT_EQ(std::ssize(rope_frequencies(1 << 20, 1e4).per_position), 1 << 19);
  for (const std::int64_t dim : {-2, 3, (1 << 20) + 2})
    EXPECT_NE(error_of([&] { rope_frequencies(dim, 1e4); }).find("rotary_dim is"), std::string::npos) << dim;
  using Kind = RopeScaling::Kind;
  const double infinity = std::numeric_limits<double>::infinity();
  const RopeScaling yarn{.kind = Kind::yarn,
                         .factor = 0.5,
                         .original_length = 1,
                         .beta_fast = 0.5,
                         .beta_slow = 0.25,
                         .attention_factor = 0};
  const RopeScaling llama{
      .kind = Kind::llama3, .factor = 0.5, .original_length = 1, .low_frequency = 0.5, .high_frequency = 0.75};
  EXPECT_NO_THROW(rope_frequencies(8, 1.5, yarn));
  EXPECT_NO_THROW(rope_frequencies(8, 0.5, llama));
  const auto refused = [&](RopeScaling s, const auto& change) {
    change(s);
    return error_of([&] { rope_frequencies(8, 1.5, s); }).starts_with("rope: scaling ");
  };
  for (const double bad : {0.0, -1.0, infinity, std::nan("")}) {
    EXPECT_TRUE(refused(yarn, [&](RopeScaling& s) { s.factor = bad; })) << bad;
    EXPECT_TRUE(refused(yarn, [&](RopeScaling& s) { s.beta_fast = bad; })) << bad;
    EXPECT_TRUE(refused(yarn, [&](RopeScaling& s) { s.beta_slow = bad; })) << bad;
    EXPECT_TRUE(refused(llama, [&](RopeScaling& s) { s.low_frequency = bad; })) << bad;
    EXPECT_TRUE(refused(llama, [&](RopeScaling& s) { s.high_frequency = bad; })) << bad;
    if (bad == 0) continue;
    EXPECT_TRUE(refused(yarn, [&](RopeScaling& s) { s.attention_factor = bad; })) << bad;
    EXPECT_TRUE(refused(yarn, [&](RopeScaling& s) { s.mscale = bad; })) << bad;
    EXPECT_TRUE(refused(yarn, [&](RopeScaling& s) { s.mscale_all_dim = bad; })) << bad;
  }
  EXPECT_TRUE(refused(yarn, [](RopeScaling& s) { s.original_length = 0; }));
  EXPECT_TRUE(refused(llama, [](RopeScaling& s) { s.high_frequency = s.low_frequency; }));
  EXPECT_NE(error_of([&] { rope_frequencies(8, infinity); }), "");
}

TEST(Rope, ATableFilledAgainHoldsNothingOfBefore) {
  const std::vector<std::int64_t> many = {5, 6, 7, 8}, few = {-3, 9};
  RopeTable table(rope_frequencies(8, 1e4), RopeStyle::half_split, many);
  const RopeFrequencies other = rope_frequencies(4, 50, {.kind = RopeScaling::Kind::linear, .factor = 3});
  table.fill(other, RopeStyle::interleaved, few);
  const RopeTable fresh(other, RopeStyle::interleaved, few);
  EXPECT_EQ(table.length(), 2);
  EXPECT_EQ(table.pairs(), 2);
  EXPECT_EQ(table.style(), RopeStyle::interleaved);
  EXPECT_EQ(std::vector(table.cosines(), table.cosines() + 4), std::vector(fresh.cosines(), fresh.cosines() + 4));
  EXPECT_EQ(std::vector(table.sines(), table.sines() + 4), std::vector(fresh.sines(), fresh.sines() + 4));
  const Tensor x = random_tensor(DType::f64, {1, 2, 2, 6}, 12);
  Tensor y(DType::f64, x.shape()), expected(DType::f64, x.shape());
  rope(x, y, table);
  rope(x, expected, fresh);
  EXPECT_TRUE(same_bits(y, expected));
}

TEST(Rope, ScoresDependOnTheDistanceAlone) {
  const Tensor q = random_tensor(DType::f64, {1, 1, 1, 16}, 4), k = random_tensor(DType::f64, {1, 1, 1, 16}, 5);
  for (const RopeStyle style : kStyles) {
    const auto score = [&](std::int64_t m, std::int64_t n) {
      Tensor turned_q(DType::f64, q.shape()), turned_k(DType::f64, k.shape());
      rope(q, turned_q, {.style = style, .first_position = m});
      rope(k, turned_k, {.style = style, .first_position = n});
      return dot(turned_q, turned_k);
    };
    EXPECT_NEAR(score(3, 1), score(1002, 1000), 1e-9);
    EXPECT_GT(std::abs(score(3, 1) - score(3, 2)), 1e-6);
  }
}

TEST(Rope, BitsDependOnThePositionAlone) {
  const Tensor x = random_tensor(DType::f32, {2, 4, 70, 32}, 6);
  const RopeOptions options{.first_position = 11};
  const auto all = [&] {
    Tensor y(DType::f32, x.shape());
    rope(x, y, options);
    return y;
  };
  expect_same_for_any_threads(all, "rope");
  const Tensor y = all();
  Tensor alone(DType::f32, {1, 1, 1, 32});
  const std::int64_t row = (1 * 4 + 2) * 70 + 33;
  rope(view_of(x.data<float>() + row * 32, {1, 1, 1, 32}), alone, {.first_position = 11 + 33});
  EXPECT_EQ(std::memcmp(alone.data<float>(), y.data<float>() + row * 32, 32 * sizeof(float)), 0);
}

TEST(Rope, EmptyTensorsWork) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const Shape& shape : std::vector<Shape>{{0, 2, 3, 4}, {2, 0, 3, 4}, {2, 2, 0, 4}, {2, 2, 3, 0}}) {
      Tensor x(dtype, shape), y(dtype, shape);
      rope(x, y);
      rope_backward(y, x);
    }
  }
}

TEST(Rope, RefusesBadArguments) {
  Tensor x(DType::f32, {1, 2, 3, 8}), y(DType::f32, {1, 2, 3, 8}), odd(DType::f32, {1, 1, 3, 7});
  EXPECT_EQ(error_of([&] { rope(odd, odd); }), "rope: rotary_dim is 7, expected an even number from 0 to 7 (dim of x)");
  EXPECT_EQ(error_of([&] { rope(x, y, {.rotary_dim = 10}); }),
            "rope: rotary_dim is 10, expected an even number from 0 to 8 (dim of x)");
  EXPECT_EQ(error_of([&] { rope_backward(x, y, {.rotary_dim = -2}); }),
            "rope_backward: rotary_dim is -2, expected an even number from 0 to 8 (dim of dy)");
  EXPECT_EQ(error_of([&] { rope(x, y, {.positions = {1, 2}}); }),
            "rope: number of positions is 2, expected 3 (length)");
  EXPECT_EQ(error_of([&] { rope(x, y, {.theta = 0}); }), "rope: theta is 0.000000, expected a finite number above 0");
  EXPECT_NE(error_of([&] { rope(x, y, {.theta = std::nan("")}); }).find("theta is"), std::string::npos);
  EXPECT_NE(error_of([&] {
              rope(x, y, {.first_position = std::numeric_limits<std::int64_t>::max() - 1});
            }).find("first_position is 9223372036854775806"),
            std::string::npos);
  EXPECT_NE(error_of([&] { rope(x, y, {.style = static_cast<RopeStyle>(9)}); }).find("style is 9"), std::string::npos);
  using Kind = RopeScaling::Kind;
  EXPECT_EQ(error_of([&] { rope(x, y, {.scaling = {.kind = Kind::linear, .factor = 0}}); }),
            "rope: scaling factor is 0.000000, expected a finite number above 0");
  EXPECT_EQ(error_of([&] { rope(x, y, {.scaling = {.kind = Kind::yarn, .factor = 4}}); }),
            "rope: scaling original_length is 0, expected the length the model was trained with");
  EXPECT_EQ(error_of([&] {
              rope(x, y, {.scaling = {.kind = Kind::llama3, .factor = 4, .original_length = 9, .low_frequency = 4}});
            }),
            "rope: scaling high_frequency is 4.000000, expected more than 4.000000 (low_frequency)");
  EXPECT_EQ(error_of([&] { rope(x, y, {.theta = 1, .scaling = {.kind = Kind::yarn, .original_length = 9}}); }),
            "rope: theta is 1.000000, expected more than 1 (YaRN takes its logarithm)");
  EXPECT_EQ(error_of([&] { rope(x, y, {.scaling = {.kind = static_cast<Kind>(7)}}); }),
            "rope: scaling is 7, expected none, linear, llama3 or yarn");
  EXPECT_EQ(error_of([&] { rope(x, odd); }), "rope: y shape is [1, 1, 3, 7], expected [1, 2, 3, 8]");
}

}  // namespace
}  // namespace attend::test::ops
