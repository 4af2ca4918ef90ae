// Tests of the projection and its gradients.
#include "attend/linear.hpp"

#include <limits>

#include "reference/linear.hpp"
#include "unit/error_of.hpp"
#include "unit/op_testing.hpp"

namespace attend::test::ops {
namespace {

struct LinearCase {
  Shape x;
  std::int64_t out;
  bool bias;
};
const std::vector<LinearCase> kCases = {
    {{1, 1, 1, 1}, 1, true},    {{2, 3, 4, 7}, 5, false},    {{1, 1, 33, 64}, 96, true}, {{3, 1, 17, 40}, 31, true},
    {{2, 4, 9, 16}, 130, true}, {{1, 2, 70, 300}, 3, false}, {{1, 1, 1, 513}, 67, true}};

Tensor magnitudes(const View& x) {
  Tensor y(DType::f64, x.shape);
  for_each_element(x.shape,
                   [&](auto b, auto h, auto i, auto j) { store(y, b, h, i, j, std::abs(load(x, b, h, i, j))); });
  return y;
}

// Each element of a sum of n products in f32 lies within (n + 2) 2^-24 of the sum of magnitudes, then is rounded.
auto sum_bound(DType dtype, const Tensor& expected, const Tensor& size, std::int64_t n) {
  return [&expected, &size, dtype, n](auto b, auto h, auto i, auto j) {
    return static_cast<double>(n + 2) * 0x1p-24 * load(size, b, h, i, j) +
           1.01 * rounding(dtype, load(expected, b, h, i, j));
  };
}

TEST(Linear, MatchesTheReferencePerElement) {
  for (const LinearCase& c : kCases) {
    for (const DType dtype : kFloats) {
      const Tensor x = random_tensor(dtype, c.x, 1), weight = random_tensor(dtype, {1, 1, c.out, c.x[3]}, 2);
      for (const DType bias_dtype : {dtype, DType::f32}) {
        const Tensor bias = random_tensor(bias_dtype, {1, 1, 1, c.out}, 3);
        const Shape shape = {c.x[0], c.x[1], c.x[2], c.out};
        Tensor expected(DType::f64, shape), size(DType::f64, shape);
        reference::linear(x, weight, c.bias ? std::optional<View>(bias) : std::nullopt, expected);
        reference::linear(magnitudes(x), magnitudes(weight), magnitudes(bias), size);
        for (const MemoryLayout layout : kMemoryLayouts) {
          for (const MemoryLayout to_layout : kMemoryLayouts) {
            const Strided from(x, layout), w(weight, layout), b(bias, layout);
            Strided to(dtype, shape, to_layout);
            linear(from.view, w.view, c.bias ? std::optional<View>(b.view) : std::nullopt, to.view);
            expect_within(to.view, expected, sum_bound(dtype, expected, size, c.x[3]), name(dtype));
            EXPECT_EQ(to.damaged(), 0);
          }
        }
      }
    }
  }
}

TEST(Linear, BackwardMatchesTheReferencePerElement) {
  for (const LinearCase& c : kCases) {
    const std::int64_t rows = c.x[0] * c.x[1] * c.x[2];
    for (const DType dtype : kFloats) {
      const Shape weight_shape = {1, 1, c.out, c.x[3]}, bias_shape = {1, 1, 1, c.out};
      const Tensor x = random_tensor(dtype, c.x, 4), weight = random_tensor(dtype, weight_shape, 5);
      const Tensor dy = random_tensor(dtype, {c.x[0], c.x[1], c.x[2], c.out}, 6);
      Tensor dx(DType::f64, c.x), dw(DType::f64, weight_shape), db(DType::f64, bias_shape);
      Tensor dx_size(DType::f64, c.x), dw_size(DType::f64, weight_shape), db_size(DType::f64, bias_shape);
      reference::linear_backward(dy, x, weight, {dx, dw, db});
      reference::linear_backward(magnitudes(dy), magnitudes(x), magnitudes(weight), {dx_size, dw_size, db_size});
      for (const MemoryLayout layout : kMemoryLayouts) {
        for (const MemoryLayout other : kMemoryLayouts) {
          const Strided strided_dy(dy, layout), strided_x(x, other), w(weight, layout);
          Strided to_x(dtype, c.x, other), to_w(dtype, weight_shape, layout), to_b(dtype, bias_shape, other);
          linear_backward(strided_dy.view, strided_x.view, w.view, {to_x.view, to_w.view, to_b.view});
          expect_within(to_x.view, dx, sum_bound(dtype, dx, dx_size, c.out), "dx");
          expect_within(to_w.view, dw, sum_bound(dtype, dw, dw_size, rows), "dweight");
          expect_within(to_b.view, db, sum_bound(dtype, db, db_size, 0), "dbias");  // summed in double
          EXPECT_EQ(to_x.damaged() + to_w.damaged() + to_b.damaged(), 0);
        }
      }
    }
  }
}

TEST(Linear, GradientsByCentralDifferences) {
  for (const LinearCase& c : {LinearCase{{1, 1, 1, 1}, 1, true}, LinearCase{{2, 1, 3, 4}, 5, true},
                              LinearCase{{2, 2, 2, 3}, 2, true}, LinearCase{{1, 1, 5, 8}, 3, true}}) {
    for (const MemoryLayout layout : {MemoryLayout::packed, MemoryLayout::odd}) {
      Tensor x = random_tensor(DType::f64, c.x, 7), weight = random_tensor(DType::f64, {1, 1, c.out, c.x[3]}, 8);
      Tensor bias = random_tensor(DType::f64, {1, 1, 1, c.out}, 9);
      Tensor y(DType::f64, {c.x[0], c.x[1], c.x[2], c.out});
      const Tensor dy = random_tensor(DType::f64, y.shape(), 10);
      const Strided strided_dy(dy, layout), strided_x(x, layout);
      Tensor dx(DType::f64, x.shape()), dw(DType::f64, weight.shape()), db(DType::f64, bias.shape());
      linear_backward(strided_dy.view, strided_x.view, weight, {dx, dw, db});
      const auto loss = [&] {
        linear(x, weight, bias.view(), y);
        return dot(y, dy);
      };
      expect_gradient(dx, x, loss, "x");
      expect_gradient(dw, weight, loss, "weight");
      expect_gradient(db, bias, loss, "bias");
    }
  }
}

TEST(Linear, BitsDependOnTheRowAlone) {
  for (const DType dtype : kFloats) {
    const Tensor x = random_tensor(dtype, {2, 3, 41, 200}, 11), weight = random_tensor(dtype, {1, 1, 77, 200}, 12);
    const Tensor bias = random_tensor(dtype, {1, 1, 1, 77}, 13);
    const auto all = [&] {
      Tensor y(dtype, {2, 3, 41, 77});
      linear(x, weight, bias.view(), y);
      return y;
    };
    expect_same_for_any_threads(all, "linear");
    const Tensor y = all();
    // The same rows one by one, some at a time, and through strides that do not collapse.
    for (const std::int64_t count : {1, 2, 7, 40}) {
      const Strided from(x, MemoryLayout::odd);
      for (std::int64_t first = 0; first + count <= 41; first += count) {
        View part = from.view;
        part.data = static_cast<const char*>(part.data) + first * part.strides[2] * size_of(dtype);
        part.shape[2] = count;
        Tensor got(dtype, {2, 3, count, 77});
        linear(part, weight, bias.view(), got);
        std::int64_t different = 0;
        for_each_element(got.shape(), [&](auto b, auto h, auto i, auto j) {
          different += load(got, b, h, i, j) != load(y, b, h, first + i, j);
        });
        EXPECT_EQ(different, 0) << name(dtype) << ", " << count << " rows from " << first;
      }
    }
  }
}

TEST(Linear, GradientBitsDoNotDependOnTheThreads) {
  const Tensor x = random_tensor(DType::f32, {2, 1, 20000, 24}, 14),
               weight = random_tensor(DType::f32, {1, 1, 40, 24}, 15);
  const Tensor dy = random_tensor(DType::f32, {2, 1, 20000, 40}, 16);
  Tensor dx(DType::f32, x.shape()), dw(DType::f32, weight.shape()), db(DType::f64, {1, 1, 1, 40});
  const auto make = [&](const Tensor& which) {
    linear_backward(dy, x, weight, {dx, dw, db});
    return which.clone();
  };
  expect_same_for_any_threads([&] { return make(dx); }, "dx");
  expect_same_for_any_threads([&] { return make(dw); }, "dweight");
  expect_same_for_any_threads([&] { return make(db); }, "dbias");
}

TEST(Linear, EmptySizesWork) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    const Tensor bias = random_tensor(dtype, {1, 1, 1, 5}, 17);
    Tensor nothing(dtype, {1, 1, 3, 0}), weight(dtype, {1, 1, 5, 0}), y(dtype, {1, 1, 3, 5});
    linear(nothing, weight, bias.view(), y);  // no inputs: the bias alone
    for_each_element(y.shape(),
                     [&](auto b, auto h, auto i, auto j) { EXPECT_EQ(load(y, b, h, i, j), load(bias, 0, 0, 0, j)); });
    linear_backward(y, nothing, weight, {nothing, weight, std::nullopt});

    Tensor no_rows(dtype, {2, 3, 0, 4}), no_rows_y(dtype, {2, 3, 0, 5});
    Tensor w = random_tensor(dtype, {1, 1, 5, 4}, 18), dw = w.clone(), db = bias.clone();
    linear(no_rows, w, std::nullopt, no_rows_y);
    linear_backward(no_rows_y, no_rows, w, {no_rows, dw, db});
    EXPECT_EQ(max_abs(dw), 0);  // overwritten: no rows give no gradient
    EXPECT_EQ(max_abs(db), 0);

    Tensor no_out(dtype, {1, 1, 0, 4}), x = random_tensor(dtype, {1, 1, 3, 4}, 19), no_y(dtype, {1, 1, 3, 0});
    Tensor dx = x.clone();
    linear(x, no_out, std::nullopt, no_y);
    linear_backward(no_y, x, no_out, {dx, std::nullopt, std::nullopt});
    EXPECT_EQ(max_abs(dx), 0);
  }
}

// A size of 0 beside huge ones: their product is never formed.
TEST(Linear, EmptyAndHuge) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 62;
  const Tensor w = random_tensor(DType::f32, {1, 1, 5, 4}, 20);
  Tensor dw = w.clone();
  for (const Shape& shape : {Shape{0, kHuge, kHuge, 4}, Shape{kHuge, 0, kHuge, 4}, Shape{kHuge, kHuge, 0, 4}}) {
    const View x{DType::f32, nullptr, shape, {1, 1, 1, 1}};
    const MutableView y{DType::f32, nullptr, {shape[0], shape[1], shape[2], 5}, {1, 1, 1, 1}};
    const MutableView dx{DType::f32, nullptr, shape, {1, 1, 1, 1}};
    linear(x, w, std::nullopt, y);
    linear_backward(y, x, w, {dx, dw, std::nullopt});
    EXPECT_EQ(max_abs(dw), 0);
  }

  // Rows without elements have no place: their strides mean nothing.
  const View no_numbers{DType::f32, nullptr, {2, 2, 2, 0}, {std::numeric_limits<std::int64_t>::max(), 1, 3, 1}};
  const Tensor no_weight(DType::f32, {1, 1, 5, 0});
  Tensor zeros = random_tensor(DType::f32, {2, 2, 2, 5}, 21);
  linear(no_numbers, no_weight, std::nullopt, zeros);
  EXPECT_EQ(max_abs(zeros), 0);
}

TEST(Linear, RefusesBadArguments) {
  Tensor x(DType::f32, {1, 2, 3, 4}), weight(DType::f32, {1, 1, 5, 4}), y(DType::f32, {1, 2, 3, 5});
  Tensor bias(DType::f32, {1, 1, 1, 5}), half(DType::f16, {1, 1, 5, 4});
  EXPECT_EQ(error_of([&] { linear(y, weight, std::nullopt, x); }),
            "linear: weight shape is [1, 1, 5, 4], expected [1, 1, 5, 5]");
  EXPECT_EQ(error_of([&] { linear(x, half, std::nullopt, y); }), "linear: weight dtype is f16, expected f32");
  EXPECT_EQ(error_of([&] { linear(x, weight, std::nullopt, x); }),
            "linear: y shape is [1, 2, 3, 4], expected [1, 2, 3, 5]");
  EXPECT_EQ(error_of([&] { linear(x, weight, weight.view(), y); }),
            "linear: bias shape is [1, 1, 5, 4], expected [1, 1, 1, 5]");
  EXPECT_EQ(error_of([&] { linear_backward(y, x, weight, {y, std::nullopt, std::nullopt}); }),
            "linear_backward: dx shape is [1, 2, 3, 5], expected [1, 2, 3, 4]");
  EXPECT_EQ(error_of([&] { linear_backward(y, x, weight, {std::nullopt, bias, std::nullopt}); }),
            "linear_backward: dweight shape is [1, 1, 1, 5], expected [1, 1, 5, 4]");
  EXPECT_EQ(error_of([&] { linear_backward(y, x, weight, {std::nullopt, half, std::nullopt}); }),
            "linear_backward: dweight dtype is f16, expected f32");
  EXPECT_EQ(error_of([&] { linear_backward(x, x, weight, {}); }),
            "linear_backward: dy shape is [1, 2, 3, 4], expected [1, 2, 3, 5]");
}

}  // namespace
}  // namespace attend::test::ops
