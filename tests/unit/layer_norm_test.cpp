// Tests of layer normalisation and its gradients.
#include "attend/layer_norm.hpp"

#include "reference/layer_norm.hpp"
#include "unit/error_of.hpp"
#include "unit/on_every_isa.hpp"
#include "unit/op_testing.hpp"

namespace attend::test::ops {
namespace {

const std::vector<Shape> kShapes = {{1, 1, 1, 1}, {2, 3, 4, 7}, {1, 2, 5, 64}, {3, 1, 2, 1000}, {2, 2, 60, 33}};

TEST(LayerNorm, KnownValues) {
  Tensor x(DType::f32, {1, 1, 2, 2}), w(DType::f32, {1, 1, 1, 2}), b(DType::f32, {1, 1, 1, 2});
  Tensor y(DType::f32, x.shape());
  store(x, 0, 0, 0, 0, 3), store(x, 0, 0, 0, 1, 7);  // mean 5, variance 4; the second row is zero
  store(w, 0, 0, 0, 0, 1), store(w, 0, 0, 0, 1, 2);
  store(b, 0, 0, 0, 0, 10), store(b, 0, 0, 0, 1, 20);
  layer_norm(x, w, b, y, 0);
  EXPECT_EQ(load(y, 0, 0, 0, 0), 9);
  EXPECT_EQ(load(y, 0, 0, 0, 1), 22);
  layer_norm(x, w, std::nullopt, y, 12);
  EXPECT_EQ(load(y, 0, 0, 0, 0), -0.5);
  EXPECT_EQ(load(y, 0, 0, 1, 1), 0);
}

TEST(LayerNorm, MatchesTheReferencePerElement) {
  on_every_isa([] {
    for (const DType dtype : kFloats) {
      for (const Shape& shape : kShapes) {
        const Tensor x = random_tensor(dtype, shape, 1);
        for (const DType weight_dtype : {dtype, DType::f64}) {
          const Tensor weight = random_tensor(weight_dtype, {1, 1, 1, shape[3]}, 2),
                       bias = random_tensor(weight_dtype, weight.shape(), 3);
          for (const bool with_bias : {true, false}) {
            Tensor expected(DType::f64, shape);
            const std::optional<View> shift = with_bias ? std::optional<View>(bias) : std::nullopt;
            reference::layer_norm(x, weight, shift, expected, 1e-5);
            const auto bound = [&](auto b, auto h, auto i, auto j) {
              const double y = load(expected, b, h, i, j), added = with_bias ? load(bias, 0, 0, 0, j) : 0;
              // weight and bias are rounded to f32
              return 1.01 * (rounding(dtype, y) + rounding(DType::f32, y - added) + rounding(DType::f32, added));
            };
            for (const MemoryLayout layout : kMemoryLayouts) {
              const Strided from(x, layout), strided_weight(weight, layout), strided_bias(bias, layout);
              Strided to(dtype, shape, layout), in_place(x, layout);
              std::optional<View> strided_shift;
              if (with_bias) strided_shift = strided_bias.view;
              layer_norm(from.view, strided_weight.view, strided_shift, to.view, 1e-5);
              layer_norm(in_place.view, strided_weight.view, strided_shift, in_place.view, 1e-5);
              expect_within(to.view, expected, bound, name(dtype));
              expect_within(in_place.view, expected, bound, std::string("in place ") + name(dtype));
              EXPECT_EQ(to.damaged() + in_place.damaged(), 0);
            }
          }
        }
      }
    }
  });
}

TEST(LayerNorm, BackwardMatchesTheReferencePerElement) {
  on_every_isa([] {
    for (const DType dtype : kFloats) {
      for (const Shape& shape : kShapes) {
        const Tensor x = random_tensor(dtype, shape, 4), dy = random_tensor(dtype, shape, 5);
        const Tensor weight = random_tensor(dtype, {1, 1, 1, shape[3]}, 6);
        Tensor dx(DType::f64, shape), dweight(DType::f64, weight.shape()), dbias(DType::f64, weight.shape());
        reference::layer_norm_backward(dy, x, weight, {dx, dweight, dbias}, 1e-5);
        for (const MemoryLayout layout : kMemoryLayouts) {
          const Strided strided_x(x, layout), strided_weight(weight, layout);
          Strided in_place(dy, layout), to_weight(dtype, weight.shape(), layout),
              to_bias(dtype, weight.shape(), layout);
          layer_norm_backward(in_place.view, strided_x.view, strided_weight.view,
                              {in_place.view, to_weight.view, to_bias.view});
          const auto bound = [&](const Tensor& of, double size) {
            return [&of, dtype, size](auto b, auto h, auto i, auto j) {
              return 1.01 * rounding(dtype, load(of, b, h, i, j)) + 1e-13 * size;
            };
          };
          // A row of one number has no slope: what is left of its cancellation is measured against dy / sqrt(eps).
          expect_within(in_place.view, dx, bound(dx, max_abs(dx) + (shape[3] == 1 ? 1e3 : 0)),
                        std::string("dx ") + name(dtype));
          expect_within(to_weight.view, dweight, bound(dweight, max_abs(dweight)),
                        std::string("dweight ") + name(dtype));
          expect_within(to_bias.view, dbias, bound(dbias, max_abs(dbias)), std::string("dbias ") + name(dtype));
          EXPECT_EQ(in_place.damaged() + to_weight.damaged() + to_bias.damaged(), 0);
        }
      }
    }
  });
}

TEST(LayerNorm, GradientsByCentralDifferences) {
  for (const Shape& shape : std::vector<Shape>{{1, 1, 3, 5}, {2, 2, 2, 3}, {1, 2, 1, 16}}) {
    for (const double eps : {1e-5, 0.3}) {
      Tensor x = random_tensor(DType::f64, shape, 7), weight = random_tensor(DType::f64, {1, 1, 1, shape[3]}, 8),
             bias = random_tensor(DType::f64, weight.shape(), 9);
      const Tensor dy = random_tensor(DType::f64, shape, 10);
      Tensor y(DType::f64, shape), dx(DType::f64, shape), dweight(DType::f64, weight.shape()),
          dbias(DType::f64, weight.shape());
      layer_norm_backward(dy, x, weight, {dx, dweight, dbias}, eps);
      const auto loss = [&] {
        layer_norm(x, weight, bias, y, eps);
        return dot(y, dy);
      };
      expect_gradient(dx, x, loss, "x");
      expect_gradient(dweight, weight, loss, "weight");
      expect_gradient(dbias, bias, loss, "bias");
    }
  }
}

TEST(LayerNorm, LargeAndBadValuesStayInTheirRow) {
  Tensor x(DType::f32, {1, 1, 3, 4}), weight(DType::f32, {1, 1, 1, 4}), y(DType::f32, x.shape());
  for_each_element(x.shape(), [&](auto b, auto h, auto i, auto j) {
    const double sign = j % 2 == 0 ? 1 : -1;
    store(x, b, h, i, j, i == 0 ? sign * 1e30 : i == 1 && j == 2 ? std::nan("") : 1e8 + sign * 8);
    store(weight, 0, 0, 0, j, 1.0);
  });
  layer_norm(x, weight, std::nullopt, y);
  for (std::int64_t j = 0; j < 4; ++j) {
    EXPECT_NEAR(load(y, 0, 0, 0, j), j % 2 == 0 ? 1 : -1, 1e-6);  // the square of 1e30 does not fit in f32
    EXPECT_TRUE(std::isnan(load(y, 0, 0, 1, j)));
    EXPECT_NEAR(load(y, 0, 0, 2, j), j % 2 == 0 ? 1 : -1, 1e-6);  // nor would a sum in f32 tell these apart
  }
}

TEST(LayerNorm, BitsDependOnTheRowAlone) {
  const Tensor x = random_tensor(DType::f32, {3, 4, 1000, 24}, 11), dy = random_tensor(DType::f32, x.shape(), 12);
  const Tensor weight = random_tensor(DType::f32, {1, 1, 1, 24}, 13);
  std::vector<Tensor> results;
  on_every_isa([&] {
    Tensor y(DType::f32, x.shape()), dx(DType::f32, x.shape());
    layer_norm(x, weight, weight, y);
    Tensor alone(DType::f32, {1, 1, 1, 24});
    layer_norm(view_of(x.data<float>() + 777 * 24, {1, 1, 1, 24}), weight, weight, alone);
    EXPECT_EQ(std::memcmp(alone.data<float>(), y.data<float>() + 777 * 24, 24 * sizeof(float)), 0);
    const auto sums = [&] {
      Tensor both(DType::f64, {1, 1, 2, 24});
      MutableView dweight = both.view(), dbias = both.view();
      dweight.shape[2] = dbias.shape[2] = 1;
      dbias.data = both.data<double>() + 24;
      layer_norm_backward(dy, x, weight, {dx, dweight, dbias});
      return both;
    };
    expect_same_for_any_threads(sums, "dweight and dbias");
    results.push_back(std::move(y));
    results.push_back(sums());
    results.push_back(std::move(dx));
  });
  for (std::size_t n = 3; n < results.size(); ++n)
    EXPECT_TRUE(same_bits(results[n], results[n % 3])) << "another instruction set has other bits: " << n;
}

TEST(LayerNorm, EmptyTensorsWork) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const Shape& shape : std::vector<Shape>{{0, 2, 3, 4}, {2, 2, 0, 4}, {2, 2, 3, 0}}) {
      Tensor x(dtype, shape), weight(dtype, {1, 1, 1, shape[3]});
      Tensor dweight = random_tensor(dtype, weight.shape(), 14), dbias = random_tensor(dtype, weight.shape(), 15);
      layer_norm(x, weight, weight, x);
      layer_norm_backward(x, x, weight, {x, dweight, dbias});
      EXPECT_EQ(max_abs(dweight) + max_abs(dbias), 0);  // overwritten: no rows give no gradient
    }
  }
}

TEST(LayerNorm, RefusesBadArguments) {
  Tensor x(DType::f32, {1, 2, 3, 4}), weight(DType::f32, {1, 1, 1, 4}), narrow(DType::f32, {1, 1, 1, 3});
  Tensor exact(DType::f64, {1, 2, 3, 4}), dweight(DType::f32, weight.shape());
  EXPECT_EQ(error_of([&] { layer_norm(x, narrow, std::nullopt, x); }),
            "layer_norm: weight shape is [1, 1, 1, 3], expected [1, 1, 1, 4]");
  EXPECT_EQ(error_of([&] { layer_norm(x, weight, narrow, x); }),
            "layer_norm: bias shape is [1, 1, 1, 3], expected [1, 1, 1, 4]");
  EXPECT_EQ(error_of([&] { layer_norm(x, weight, std::nullopt, exact); }),
            "layer_norm: y dtype is f64, expected f32, f16 or bf16 beside f32");
  EXPECT_EQ(error_of([&] { layer_norm(x, weight, std::nullopt, x, -1.0); }),
            "layer_norm: eps is -1.000000, expected a finite number from 0 up");
  EXPECT_EQ(error_of([&] { layer_norm_backward(exact, x, weight, {x, dweight, {}}); }),
            "layer_norm_backward: dy dtype is f64, expected f32, f16 or bf16 beside f32");
  EXPECT_EQ(error_of([&] { layer_norm_backward(x, x, weight, {exact, dweight, {}}); }),
            "layer_norm_backward: dx dtype is f64, expected f32, f16 or bf16 beside f32");
  EXPECT_EQ(error_of([&] { layer_norm_backward(x, x, weight, {x, dweight, dweight}); }),
            "layer_norm_backward: dx shares memory with x, expected a place of its own");
}

}  // namespace
}  // namespace attend::test::ops
