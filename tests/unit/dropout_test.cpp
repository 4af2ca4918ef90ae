// Tests of dropout of a tensor.
#include "attend/dropout.hpp"

#include "reference/dropout.hpp"
#include "unit/error_of.hpp"
#include "unit/on_every_isa.hpp"
#include "unit/op_testing.hpp"

namespace attend::test::ops {
namespace {

const std::vector<Shape> kShapes = {{1, 1, 1, 1}, {2, 3, 4, 7}, {1, 2, 5, 64}, {1, 1, 3, 2500}, {2, 2, 50, 33}};

TEST(Dropout, MatchesTheReferencePerElement) {
  on_every_isa([] {
    for (const DType dtype : kFloats) {
      for (const Shape& shape : kShapes) {
        const Tensor x = random_tensor(dtype, shape, 1);
        for (const Dropout& options : {Dropout{0.3, 17}, Dropout{0, 1}, Dropout{0.99, 0xffff'ffff'ffff'ffffU}}) {
          Tensor expected(DType::f64, shape);
          reference::dropout(x, expected, options);
          const auto bound = [&](auto b, auto h, auto i, auto j) {
            const double y = load(expected, b, h, i, j);  // what is dropped is exactly 0
            return y == 0 ? 0 : 1.01 * (rounding(dtype, y) + 2 * rounding(DType::f32, y));
          };
          for (const MemoryLayout layout : kMemoryLayouts) {
            const Strided from(x, layout);
            Strided to(dtype, shape, layout), in_place(x, layout);
            dropout(from.view, to.view, options);
            dropout(in_place.view, in_place.view, options);
            expect_within(to.view, expected, bound, name(dtype));
            expect_within(in_place.view, expected, bound, std::string("in place ") + name(dtype));
            EXPECT_EQ(to.damaged() + in_place.damaged(), 0);
          }
        }
      }
    }
  });
}

TEST(Dropout, KeepsTheShareItShould) {
  Tensor x(DType::f32, {1, 1, 100, 1000}), y(DType::f32, x.shape());
  for (std::int64_t n = 0; n < x.size(); ++n) x.data<float>()[n] = std::nanf("");
  const auto dropped = [&](std::uint64_t seed) {
    dropout(x, y, {0.25, seed});
    std::int64_t zeros = 0;
    for (std::int64_t n = 0; n < y.size(); ++n) zeros += y.data<float>()[n] == 0;  // even of NaN
    return static_cast<double>(zeros) / static_cast<double>(y.size());
  };
  for (const std::uint64_t seed : {0U, 1U, 2U}) EXPECT_NEAR(dropped(seed), 0.25, 0.006) << seed;
}

TEST(Dropout, TheGradientIsTheSameCall) {
  Tensor x = random_tensor(DType::f64, {1, 2, 3, 5}, 2), y(DType::f64, x.shape()), dx(DType::f64, x.shape());
  const Tensor dy = random_tensor(DType::f64, x.shape(), 3);
  const Dropout options{0.4, 5};
  dropout(dy, dx, options);
  expect_gradient(
      dx, x,
      [&] {
        dropout(x, y, options);
        return dot(y, dy);
      },
      "x");
}

TEST(Dropout, BitsDependOnTheElementsNumberAlone) {
  const Tensor x = random_tensor(DType::f32, {2, 3, 100, 77}, 4);
  const auto all = [&] {
    Tensor y(DType::f32, x.shape());
    dropout(x, y, {0.5, 6});
    return y;
  };
  Tensor first;
  on_every_isa([&] {
    expect_same_for_any_threads(all, "dropout");
    const Tensor y = all();
    if (first.empty()) first = y.clone();
    EXPECT_TRUE(same_bits(y, first)) << "another instruction set has other bits";
  });
}

TEST(Dropout, EmptyAndBadArguments) {
  Tensor none(DType::f32, {2, 0, 3, 4}), x(DType::f32, {1, 2, 3, 4}), half(DType::f16, {1, 2, 3, 4});
  dropout(none, none, {0.5, 1});
  EXPECT_EQ(error_of([&] { dropout(x, x, {1.0, 1}); }), "dropout: probability is 1.000000, expected [0, 1)");
  EXPECT_EQ(error_of([&] { dropout(x, x, {-0.5, 1}); }), "dropout: probability is -0.500000, expected [0, 1)");
  EXPECT_NE(error_of([&] { dropout(x, x, {std::nan(""), 1}); }).find("expected [0, 1)"), std::string::npos);
  EXPECT_EQ(error_of([&] { dropout(x, half, {}); }), "dropout: y dtype is f16, expected f32");
}

}  // namespace
}  // namespace attend::test::ops
