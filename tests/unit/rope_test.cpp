// Tests of rotary position embedding and its gradient.
#include "attend/rope.hpp"

#include <complex>
#include <limits>

#include "reference/rope.hpp"
#include "unit/error_of.hpp"
#include "unit/op_testing.hpp"

namespace attend::test::ops {
namespace {

constexpr RopeStyle kStyles[] = {RopeStyle::half_split, RopeStyle::interleaved};

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
  }
  return list;
}

// The definition once more, by complex numbers.
std::complex<double> turned(const View& x, const RopeOptions& o, std::int64_t b, std::int64_t h, std::int64_t i,
                            std::int64_t pair, double direction) {
  const std::int64_t R = o.rotary_dim == 0 ? x.dim() : o.rotary_dim;
  const auto position =
      static_cast<double>(o.positions.empty() ? o.first_position + i : o.positions[static_cast<std::size_t>(i)]);
  const double frequency = std::pow(o.theta, -2.0 * static_cast<double>(pair) / static_cast<double>(R));
  const bool split = o.style == RopeStyle::half_split;
  const std::complex<double> z(load(x, b, h, i, split ? pair : 2 * pair),
                               load(x, b, h, i, split ? pair + R / 2 : 2 * pair + 1));
  return z * std::polar(1.0, direction * position * frequency);
}

Tensor expected_turn(const View& x, const RopeOptions& o, double direction) {
  Tensor y = to_dtype(x, DType::f64);
  const std::int64_t R = o.rotary_dim == 0 ? x.dim() : o.rotary_dim;
  const bool split = o.style == RopeStyle::half_split;
  for_each_element({x.batch(), x.heads(), x.length(), R / 2}, [&](auto b, auto h, auto i, auto pair) {
    const std::complex<double> z = turned(x, o, b, h, i, pair, direction);
    store(y, b, h, i, split ? pair : 2 * pair, z.real());
    store(y, b, h, i, split ? pair + R / 2 : 2 * pair + 1, z.imag());
  });
  return y;
}

TEST(Rope, TurnsByTheAngleOfThePosition) {
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
        const Tensor expected = expected_turn(x, c.options, direction);
        const std::int64_t R = c.options.rotary_dim == 0 ? c.shape[3] : c.options.rotary_dim;
        // cos or sin and its product are rounded to f32 (f64); |u cos| + |v sin| <= |(u, v)|.
        const double unit = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
        const auto bound = [&](auto b, auto h, auto i, auto j) {
          if (j >= R) return 0.0;
          const std::int64_t pair = c.options.style == RopeStyle::half_split ? j % (R / 2) : j / 2;
          const double length = std::abs(turned(x, c.options, b, h, i, pair, direction));
          const double both = dtype == DType::f64 ? 2 : 1;  // the expectation is rounded as well
          return 1.01 * both * (3 * unit * length + rounding(dtype, load(expected, b, h, i, j)));
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
  EXPECT_EQ(error_of([&] { rope(x, odd); }), "rope: y shape is [1, 1, 3, 7], expected [1, 2, 3, 8]");
}

}  // namespace
}  // namespace attend::test::ops
