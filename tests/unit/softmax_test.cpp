// Tests of softmax and its gradient.
#include "attend/softmax.hpp"

#include <algorithm>
#include <limits>

#include "reference/softmax.hpp"
#include "unit/error_of.hpp"
#include "unit/op_testing.hpp"

namespace attend::test::ops {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

const std::vector<Shape> kShapes = {{1, 1, 1, 1}, {2, 3, 4, 7}, {1, 2, 5, 64}, {3, 1, 2, 1000}, {1, 1, 300, 33}};

std::string label(DType dtype, const Shape& s, MemoryLayout layout) {
  return std::string(name(dtype)) + " [" + std::to_string(s[0]) + ", " + std::to_string(s[1]) + ", " +
         std::to_string(s[2]) + ", " + std::to_string(s[3]) + "] layout " + std::to_string(static_cast<int>(layout));
}

double row_max(const View& x, std::int64_t b, std::int64_t h, std::int64_t i) {
  double max = -kInfinity;
  for (std::int64_t j = 0; j < x.dim(); ++j) max = std::max(max, load(x, b, h, i, j));
  return max;
}

TEST(Softmax, MatchesTheReferencePerElement) {
  for (const DType dtype : kFloats) {
    for (const Shape& shape : kShapes) {
      const Tensor x = random_tensor(dtype, shape, 1, 4.0);
      Tensor expected(DType::f64, shape);
      reference::softmax(x, expected);
      // exp and its argument are rounded to f32 once each; a library exp is within 1 ULP.
      const auto bound = [&](auto b, auto h, auto i, auto j) {
        const double y = load(expected, b, h, i, j);
        const double distance = row_max(x, b, h, i) - load(x, b, h, i, j);
        return y * (distance + 6) * 0x1p-24 + 1.01 * rounding(dtype, y) + 0x1p-148;
      };
      for (const MemoryLayout layout : kMemoryLayouts) {
        const Strided from(x, layout);
        Strided to(dtype, shape, layout);
        softmax(from.view, to.view);
        expect_within(to.view, expected, bound, label(dtype, shape, layout));
        EXPECT_EQ(to.damaged(), 0) << label(dtype, shape, layout);

        Strided in_place(x, layout);
        softmax(in_place.view, in_place.view);
        expect_within(in_place.view, expected, bound, "in place, " + label(dtype, shape, layout));
        EXPECT_EQ(in_place.damaged(), 0) << label(dtype, shape, layout);
      }
    }
  }
}

TEST(Softmax, BackwardMatchesTheReferencePerElement) {
  for (const DType dtype : kFloats) {
    for (const Shape& shape : kShapes) {
      Tensor y(dtype, shape);
      softmax(random_tensor(dtype, shape, 2, 2.0), y);
      const Tensor dy = random_tensor(dtype, shape, 3);
      Tensor expected(DType::f64, shape);
      reference::softmax_backward(dy, y, expected);
      const auto bound = [&](auto b, auto h, auto i, auto j) {
        return 1.01 * rounding(dtype, load(expected, b, h, i, j)) + 1e-13 * load(y, b, h, i, j);
      };
      for (const MemoryLayout layout : kMemoryLayouts) {
        const Strided strided_y(y, layout);
        Strided in_place(dy, layout);  // dx may be dy
        softmax_backward(in_place.view, strided_y.view, in_place.view);
        expect_within(in_place.view, expected, bound, label(dtype, shape, layout));
        EXPECT_EQ(in_place.damaged(), 0) << label(dtype, shape, layout);
      }
    }
  }
}

TEST(Softmax, GradientByCentralDifferences) {
  for (const Shape& shape : std::vector<Shape>{{1, 1, 1, 1}, {1, 1, 2, 5}, {2, 2, 3, 4}, {1, 1, 1, 17}}) {
    Tensor x = random_tensor(DType::f64, shape, 4);
    const Tensor dy = random_tensor(DType::f64, shape, 5);
    Tensor y(DType::f64, shape), dx(DType::f64, shape);
    softmax(x, y);
    softmax_backward(dy, y, dx);
    const auto loss = [&] {
      softmax(x, y);
      return dot(y, dy);
    };
    expect_gradient(dx, x, loss, "x");
  }
}

TEST(Softmax, ExtremesStayInTheirRow) {
  const std::vector<std::vector<double>> rows = {{-kInfinity, -kInfinity, -kInfinity},
                                                 {1, std::nan(""), -kInfinity},
                                                 {1, kInfinity, 2},
                                                 {6e4, -6e4, 6e4},
                                                 {-6e4, -6e4, -6e4},
                                                 {-kInfinity, 0, -kInfinity},
                                                 {std::nan(""), -kInfinity, -kInfinity}};
  const double nan = std::nan("");
  const std::vector<std::vector<double>> expected = {
      {0, 0, 0}, {nan, nan, nan}, {nan, nan, nan}, {0.5, 0, 0.5}, {1 / 3.0, 1 / 3.0, 1 / 3.0},
      {0, 1, 0}, {nan, nan, nan}};
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64}) {
    const auto count = static_cast<std::int64_t>(rows.size());
    Tensor x(dtype, {1, 1, count, 3}), y(dtype, {1, 1, count, 3});
    for_each_element(x.shape(), [&](auto b, auto h, auto i, auto j) {
      store(x, b, h, i, j, rows[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)]);
    });
    softmax(x, y);
    for_each_element(x.shape(), [&](auto b, auto h, auto i, auto j) {
      const double want = expected[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)], got = load(y, b, h, i, j);
      if (std::isnan(want)) {
        EXPECT_TRUE(std::isnan(got)) << name(dtype) << " row " << i;
      } else {
        EXPECT_NEAR(got, want, rounding(dtype, want) + 1e-7) << name(dtype) << " row " << i;
      }
    });
  }
}

TEST(Softmax, BitsDependOnTheRowAlone) {
  const Tensor x = random_tensor(DType::f32, {4, 3, 50, 37}, 6);
  const Tensor dy = random_tensor(DType::f32, x.shape(), 7);
  const auto forward = [&] {
    Tensor y(DType::f32, x.shape());
    softmax(x, y);
    return y;
  };
  const Tensor y = forward();
  expect_same_for_any_threads(forward, "softmax");
  expect_same_for_any_threads(
      [&] {
        Tensor dx(DType::f32, x.shape());
        softmax_backward(dy, y, dx);
        return dx;
      },
      "softmax_backward");
  const std::int64_t row = 2 * 3 * 50 + 50 + 7;  // of batch 2, head 1
  Tensor alone(DType::f32, {1, 1, 1, 37});
  softmax(view_of(x.data<float>() + row * 37, {1, 1, 1, 37}), alone);
  EXPECT_EQ(std::memcmp(alone.data<float>(), y.data<float>() + row * 37, 37 * sizeof(float)), 0);
}

TEST(Softmax, EmptyTensorsWork) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    for (const Shape& shape : std::vector<Shape>{{0, 2, 3, 4}, {2, 0, 3, 4}, {2, 2, 0, 4}, {2, 2, 3, 0}}) {
      Tensor x(dtype, shape), y(dtype, shape);
      softmax(x, y);
      softmax_backward(x, y, y);
    }
    const std::int64_t many = std::int64_t{1} << 61;
    const MutableView none{dtype, nullptr, {many, 4, 0, 4}, {0, 0, 0, 0}};
    softmax(none, none);
    softmax_backward(none, none, none);
  }
}

TEST(Softmax, RefusesBadArguments) {
  Tensor x(DType::f32, {1, 2, 3, 4}), other(DType::f32, {1, 2, 3, 5}), half(DType::f16, {1, 2, 3, 4});
  EXPECT_EQ(error_of([&] { softmax(x, other); }), "softmax: y shape is [1, 2, 3, 5], expected [1, 2, 3, 4]");
  EXPECT_EQ(error_of([&] { softmax(x, half); }), "softmax: y dtype is f16, expected f32");
  EXPECT_EQ(error_of([&] { softmax_backward(other, x, x); }),
            "softmax_backward: dy shape is [1, 2, 3, 5], expected [1, 2, 3, 4]");
  EXPECT_EQ(error_of([&] { softmax_backward(x, x, half); }), "softmax_backward: dx dtype is f16, expected f32");
  EXPECT_EQ(error_of([&] { softmax_backward(half, x, x); }), "softmax_backward: dy dtype is f16, expected f32");
  MutableView null = x;
  null.data = nullptr;
  EXPECT_NE(error_of([&] { softmax(null, x); }).find("softmax: x data is null"), std::string::npos);
  MutableView repeated = x;
  repeated.strides[1] = 0;
  EXPECT_NE(error_of([&] { softmax(x, repeated); }).find("a place of its own"), std::string::npos);
}

}  // namespace
}  // namespace attend::test::ops
