// Tests of root-mean-square normalisation and its gradients.
#include "attend/rms_norm.hpp"

#include <cstring>

#include "attend/add.hpp"
#include "reference/rms_norm.hpp"
#include "unit/error_of.hpp"
#include "unit/on_every_isa.hpp"
#include "unit/op_testing.hpp"

namespace attend::test::ops {
namespace {

const std::vector<Shape> kShapes = {{1, 1, 1, 1}, {2, 3, 4, 7}, {1, 2, 5, 64}, {3, 1, 2, 1000}, {2, 2, 150, 33}};

TEST(RmsNorm, KnownValues) {
  Tensor x(DType::f32, {1, 1, 2, 2}), w(DType::f32, {1, 1, 1, 2}), y(DType::f32, {1, 1, 2, 2});
  store(x, 0, 0, 0, 0, 3), store(x, 0, 0, 0, 1, 4);  // mean of squares 12.5; the second row is zero
  store(w, 0, 0, 0, 0, 1), store(w, 0, 0, 0, 1, 2);
  rms_norm(x, w, y);
  EXPECT_NEAR(load(y, 0, 0, 0, 0), 3 / std::sqrt(12.5), 1e-6);
  EXPECT_NEAR(load(y, 0, 0, 0, 1), 8 / std::sqrt(12.5), 1e-6);
  EXPECT_EQ(load(y, 0, 0, 1, 0), 0);
  rms_norm(x, w, y, 12.5);
  EXPECT_NEAR(load(y, 0, 0, 0, 0), 3.0 / 5, 1e-6);
}

TEST(RmsNorm, MatchesTheReferencePerElement) {
  on_every_isa([] {
    for (const DType dtype : kFloats) {
      for (const Shape& shape : kShapes) {
        const Tensor x = random_tensor(dtype, shape, 1);
        for (const DType weight_dtype : {dtype, DType::f32, DType::f64}) {
          const Tensor weight = random_tensor(weight_dtype, {1, 1, 1, shape[3]}, 2);
          Tensor expected(DType::f64, shape);
          reference::rms_norm(x, weight, expected, 1e-5);
          const auto bound = [&](auto b, auto h, auto i, auto j) {
            const double y = load(expected, b, h, i, j);
            return 1.01 * (rounding(dtype, y) + rounding(DType::f32, y));  // the weight is rounded to f32
          };
          for (const MemoryLayout layout : kMemoryLayouts) {
            const Strided from(x, layout), strided_weight(weight, layout);
            Strided to(dtype, shape, layout), in_place(x, layout);
            rms_norm(from.view, strided_weight.view, to.view, 1e-5);
            rms_norm(in_place.view, strided_weight.view, in_place.view, 1e-5);
            expect_within(to.view, expected, bound, name(dtype));
            expect_within(in_place.view, expected, bound, std::string("in place ") + name(dtype));
            EXPECT_EQ(to.damaged() + in_place.damaged(), 0);
          }
        }
      }
    }
  });
}

TEST(RmsNorm, BackwardMatchesTheReferencePerElement) {
  on_every_isa([] {
    for (const DType dtype : kFloats) {
      for (const Shape& shape : kShapes) {
        const Tensor x = random_tensor(dtype, shape, 3), dy = random_tensor(dtype, shape, 4);
        const Tensor weight = random_tensor(dtype, {1, 1, 1, shape[3]}, 5);
        Tensor dx(DType::f64, shape), dweight(DType::f64, weight.shape());
        reference::rms_norm_backward(dy, x, weight, dx, dweight, 1e-6);
        const double size = max_abs(dx), weight_size = max_abs(dweight);
        for (const MemoryLayout layout : kMemoryLayouts) {
          const Strided strided_x(x, layout), strided_weight(weight, layout);
          Strided in_place(dy, layout), to_weight(dtype, weight.shape(), layout);  // dx may be dy
          rms_norm_backward(in_place.view, strided_x.view, strided_weight.view, in_place.view, to_weight.view);
          const auto bound = [&](auto b, auto h, auto i, auto j) {
            return 1.01 * rounding(dtype, load(dx, b, h, i, j)) + 1e-13 * size;
          };
          const auto weight_bound = [&](auto b, auto h, auto i, auto j) {
            return 1.01 * rounding(dtype, load(dweight, b, h, i, j)) + 1e-13 * weight_size;
          };
          expect_within(in_place.view, dx, bound, std::string("dx ") + name(dtype));
          expect_within(to_weight.view, dweight, weight_bound, std::string("dweight ") + name(dtype));
          EXPECT_EQ(in_place.damaged() + to_weight.damaged(), 0);
        }
      }
    }
  });
}

TEST(RmsNorm, GradientsByCentralDifferences) {
  for (const Shape& shape : std::vector<Shape>{{1, 1, 1, 1}, {1, 1, 3, 5}, {2, 2, 2, 3}, {1, 2, 1, 16}}) {
    for (const double eps : {1e-6, 0.3}) {
      Tensor x = random_tensor(DType::f64, shape, 6), weight = random_tensor(DType::f64, {1, 1, 1, shape[3]}, 7);
      const Tensor dy = random_tensor(DType::f64, shape, 8);
      Tensor y(DType::f64, shape), dx(DType::f64, shape), dweight(DType::f64, weight.shape());
      rms_norm_backward(dy, x, weight, dx, dweight, eps);
      const auto loss = [&] {
        rms_norm(x, weight, y, eps);
        return dot(y, dy);
      };
      expect_gradient(dx, x, loss, "x");
      expect_gradient(dweight, weight, loss, "weight");
    }
  }
}

TEST(RmsNorm, LargeAndBadValuesStayInTheirRow) {
  Tensor x(DType::f32, {1, 1, 3, 4}), weight(DType::f32, {1, 1, 1, 4}), y(DType::f32, x.shape());
  for_each_element(x.shape(), [&](auto b, auto h, auto i, auto j) {
    store(x, b, h, i, j, i == 0 ? 1e30 : i == 1 && j == 2 ? std::nan("") : 1.0);
    store(weight, 0, 0, 0, j, 1.0);
  });
  rms_norm(x, weight, y);
  for (std::int64_t j = 0; j < 4; ++j) {
    EXPECT_NEAR(load(y, 0, 0, 0, j), 1.0, 1e-6);  // the square of 1e30 does not fit in f32
    EXPECT_TRUE(std::isnan(load(y, 0, 0, 1, j)));
    EXPECT_NEAR(load(y, 0, 0, 2, j), 1.0, 1e-6);
  }
}

TEST(RmsNorm, BitsDoNotDependOnTheThreads) {
  // Enough rows that every thread gets some before the first has done them all.
  const Tensor x = random_tensor(DType::f32, {3, 4, 4000, 24}, 9), dy = random_tensor(DType::f32, x.shape(), 10);
  const Tensor weight = random_tensor(DType::f32, {1, 1, 1, 24}, 11);
  Tensor y(DType::f32, x.shape()), dx(DType::f32, x.shape());
  rms_norm(x, weight, y);
  Tensor alone(DType::f32, {1, 1, 1, 24});
  rms_norm(view_of(x.data<float>() + 777 * 24, {1, 1, 1, 24}), weight, alone);
  EXPECT_EQ(std::memcmp(alone.data<float>(), y.data<float>() + 777 * 24, 24 * sizeof(float)), 0);
  const auto dweight_of = [&] {
    Tensor dweight(DType::f64, weight.shape());
    rms_norm_backward(dy, x, weight, dx, dweight);
    return dweight;
  };
  const auto dx_of = [&] {
    dweight_of();
    return dx.clone();
  };
  expect_same_for_any_threads(dweight_of, "dweight");
  expect_same_for_any_threads(dx_of, "dx");
}

TEST(RmsNorm, EmptyTensorsWork) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const Shape& shape : std::vector<Shape>{{0, 2, 3, 4}, {2, 2, 0, 4}, {2, 2, 3, 0}}) {
      Tensor x(dtype, shape), weight(dtype, {1, 1, 1, shape[3]});
      Tensor dweight = random_tensor(dtype, weight.shape(), 12);
      rms_norm(x, weight, x);
      rms_norm_backward(x, x, weight, x, dweight);
      EXPECT_EQ(max_abs(dweight), 0);  // overwritten: no rows give no gradient
    }
  }
}

// The numbers are those of one type, converted before or after.
TEST(RmsNorm, TakesRowsOfOtherTypes) {
  on_every_isa([] {
    const Shape shape = {2, 2, 5, 33};
    const Tensor x = random_tensor(DType::f32, shape, 1), weight = random_tensor(DType::f32, {1, 1, 1, 33}, 2);
    Tensor y(DType::f32, shape), rounded(DType::bf16, shape), expected(DType::bf16, shape);
    rms_norm(x, weight, y);
    convert(y, expected);
    rms_norm(x, weight, rounded);
    EXPECT_EQ(std::memcmp(rounded.view().data, expected.view().data, static_cast<std::size_t>(rounded.bytes())), 0);

    const Tensor dy = random_tensor(DType::bf16, shape, 3);
    Tensor wide(DType::f32, shape), dx(DType::f32, shape), dx_wide(DType::f32, shape);
    Tensor dweight(DType::f32, weight.shape()), dweight_wide(DType::f32, weight.shape());
    convert(dy, wide);
    rms_norm_backward(dy, x, weight, dx, dweight);
    rms_norm_backward(wide, x, weight, dx_wide, dweight_wide);
    EXPECT_EQ(std::memcmp(dx.view().data, dx_wide.view().data, static_cast<std::size_t>(dx.bytes())), 0);
    EXPECT_EQ(std::memcmp(dweight.view().data, dweight_wide.view().data, static_cast<std::size_t>(dweight.bytes())), 0);
  });
}

// The gradient of a residual: dx may be the sum's own place, or dy.
TEST(RmsNorm, BackwardAddsToAnother) {
  on_every_isa([] {
    const Shape shape = {2, 3, 21, 40};
    for (const DType dtype : {DType::f32, DType::f64}) {
      const Tensor x = random_tensor(dtype, shape, 1), dy = random_tensor(dtype, shape, 2),
                   plus = random_tensor(dtype, shape, 3), weight = random_tensor(dtype, {1, 1, 1, 40}, 4);
      Tensor dx(dtype, shape), sum(dtype, shape), dweight(dtype, weight.shape()), again(dtype, weight.shape());
      rms_norm_backward(dy, x, weight, dx, dweight);
      add(plus, dx, sum);
      for (const MemoryLayout layout : kMemoryLayouts) {
        const Strided given(dy, layout), from(x, layout);
        Strided over_plus(plus, layout), over_dy(dy, layout);
        const Strided apart(plus, layout);
        rms_norm_backward(given.view, from.view, weight, over_plus.view, again, 1e-6, over_plus.view);
        rms_norm_backward(over_dy.view, from.view, weight, over_dy.view, again, 1e-6, apart.view);
        for_each_element(shape, [&](auto b, auto h, auto i, auto j) {
          ASSERT_EQ(load(over_plus.view, b, h, i, j), load(sum, b, h, i, j)) << name(dtype);
          ASSERT_EQ(load(over_dy.view, b, h, i, j), load(sum, b, h, i, j)) << name(dtype);
        });
        EXPECT_EQ(over_plus.damaged() + over_dy.damaged(), 0);
      }
    }
  });
}

// Heads side by side in a row of tokens, as projections leave them: walked in the order of memory.
TEST(RmsNorm, HeadsSideBySideGiveTheSameRows) {
  on_every_isa([] {
    const std::int64_t H = 5, L = 37, D = 24;
    Tensor x = random_tensor(DType::bf16, {1, 1, L, H * D}, 1), dy = random_tensor(DType::bf16, x.shape(), 2);
    const Tensor weight = random_tensor(DType::f32, {1, 1, 1, D}, 3);
    const auto heads = [&](Tensor& t) { return MutableView{t.dtype(), t.view().data, {1, H, L, D}, {0, D, H * D, 1}}; };
    Tensor own_x(DType::bf16, {1, H, L, D}), own_dy(DType::bf16, own_x.shape());
    for_each_element(own_x.shape(), [&](auto b, auto h, auto i, auto j) {
      store(own_x, b, h, i, j, load(heads(x), b, h, i, j));
      store(own_dy, b, h, i, j, load(heads(dy), b, h, i, j));
    });
    Tensor y(DType::bf16, x.shape()), own_y(DType::bf16, own_x.shape()), dweight(DType::f64, weight.shape()),
        own_dweight(DType::f64, weight.shape());
    rms_norm(heads(x), weight, heads(y));
    rms_norm(own_x, weight, own_y);
    rms_norm_backward(heads(dy), heads(x), weight, heads(dy), dweight);
    rms_norm_backward(own_dy, own_x, weight, own_dy, own_dweight);
    for_each_element(own_x.shape(), [&](auto b, auto h, auto i, auto j) {
      ASSERT_EQ(load(heads(y), b, h, i, j), load(own_y, b, h, i, j));
      ASSERT_EQ(load(heads(dy), b, h, i, j), load(own_dy, b, h, i, j));
    });
    for (std::int64_t j = 0; j < D; ++j)
      EXPECT_NEAR(load(dweight, 0, 0, 0, j), load(own_dweight, 0, 0, 0, j), 1e-12 * max_abs(own_dweight));
  });
}

TEST(RmsNorm, RefusesBadArguments) {
  Tensor x(DType::f32, {1, 2, 3, 4}), weight(DType::f32, {1, 1, 1, 4}), narrow(DType::f32, {1, 1, 1, 3});
  Tensor exact(DType::f64, {1, 2, 3, 4});
  EXPECT_EQ(error_of([&] { rms_norm(x, narrow, x); }), "rms_norm: weight shape is [1, 1, 1, 3], expected [1, 1, 1, 4]");
  EXPECT_EQ(error_of([&] { rms_norm(x, weight, exact); }),
            "rms_norm: y dtype is f64, expected f32, f16 or bf16 beside f32");
  EXPECT_EQ(error_of([&] { rms_norm(x, weight, x, -1.0); }),
            "rms_norm: eps is -1.000000, expected a finite number from 0 up");
  EXPECT_NE(error_of([&] { rms_norm(x, weight, x, std::nan("")); }).find("eps is"), std::string::npos);
  EXPECT_EQ(error_of([&] { rms_norm_backward(x, x, weight, x, narrow); }),
            "rms_norm_backward: dweight shape is [1, 1, 1, 3], expected [1, 1, 1, 4]");
  EXPECT_EQ(error_of([&] { rms_norm_backward(exact, x, weight, x, weight); }),
            "rms_norm_backward: dy dtype is f64, expected f32, f16 or bf16 beside f32");
  Tensor dx(DType::f32, {1, 2, 3, 4}), dweight(DType::f32, {1, 1, 1, 4});
  EXPECT_EQ(error_of([&] { rms_norm_backward(x, x, weight, dx, dweight, 1e-6, narrow); }),
            "rms_norm_backward: plus shape is [1, 1, 1, 3], expected [1, 2, 3, 4]");
}

}  // namespace
}  // namespace attend::test::ops
