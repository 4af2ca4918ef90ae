// Tests of sums of tensors and of changes of dtype.
#include "attend/add.hpp"

#include "unit/error_of.hpp"
#include "unit/on_every_isa.hpp"
#include "unit/op_testing.hpp"

namespace attend::test::ops {
namespace {

const std::vector<Shape> kShapes = {{1, 1, 1, 1}, {2, 3, 4, 7}, {1, 1, 3, 2500}, {2, 2, 50, 33}};

TEST(Add, IsTheSumRoundedOnce) {
  on_every_isa([] {
    for (const DType x_dtype : kFloats) {
      for (const DType y_dtype : kFloats) {
        for (const DType z_dtype : kFloats) {
          for (const Shape& shape : kShapes) {
            const Tensor x = random_tensor(x_dtype, shape, 1), y = random_tensor(y_dtype, shape, 2);
            Tensor expected(z_dtype, shape);
            for_each_element(shape, [&](auto b, auto h, auto i, auto d) {
              const auto sum = static_cast<float>(load(x, b, h, i, d)) + static_cast<float>(load(y, b, h, i, d));
              store(expected, b, h, i, d, static_cast<double>(sum));
            });
            const auto exact = [](auto, auto, auto, auto) { return 0.0; };
            for (const MemoryLayout layout : kMemoryLayouts) {
              const Strided a(x, layout), b(y, layout);
              Strided to(z_dtype, shape, layout), over_x(x, layout), over_y(y, layout);
              add(a.view, b.view, to.view);
              expect_within(to.view, expected, exact, "z");
              if (x_dtype == z_dtype) {
                add(over_x.view, b.view, over_x.view);
                expect_within(over_x.view, expected, exact, "x");
              }
              if (y_dtype == z_dtype) {
                add(a.view, over_y.view, over_y.view);
                expect_within(over_y.view, expected, exact, "y");
              }
              EXPECT_EQ(to.damaged() + over_x.damaged() + over_y.damaged(), 0);
            }
          }
        }
      }
    }
  });
}

TEST(Add, DoublesAndRepeatedRows) {
  const Tensor x = random_tensor(DType::f64, {1, 2, 3, 4}, 3), y = random_tensor(DType::f64, {1, 1, 1, 4}, 4);
  Tensor z(DType::f64, x.shape());
  View repeated = y.view();
  repeated.shape = x.shape(), repeated.strides = {0, 0, 0, 1};
  add(x, repeated, z);
  for_each_element(x.shape(), [&](auto b, auto h, auto i, auto d) {
    EXPECT_EQ(load(z, b, h, i, d), load(x, b, h, i, d) + load(y, 0, 0, 0, d));
  });
}

TEST(Add, BitsDoNotDependOnTheThreads) {
  const Tensor x = random_tensor(DType::f32, {1, 1, 300, 333}, 5), y = random_tensor(DType::bf16, x.shape(), 6);
  const auto sum = [&] {
    Tensor z(DType::bf16, x.shape());
    add(x, y, z);
    return z;
  };
  expect_same_for_any_threads(sum, "add");
}

TEST(Convert, RoundsOnce) {
  on_every_isa([] {
    for (const DType from : kFloats) {
      for (const DType to : kFloats) {
        for (const Shape& shape : kShapes) {
          const Tensor x = random_tensor(from, shape, 7, 1e-3);
          const Tensor expected = to_dtype(x, to);
          for (const MemoryLayout layout : kMemoryLayouts) {
            const Strided a(x, layout);
            Strided b(to, shape, layout);
            convert(a.view, b.view);
            expect_within(b.view, expected, [](auto, auto, auto, auto) { return 0.0; }, name(to));
            EXPECT_EQ(b.damaged(), 0);
          }
        }
      }
    }
  });
}

TEST(Add, RefusesBadArguments) {
  Tensor x(DType::f32, {1, 2, 3, 4}), y(DType::f32, {1, 2, 3, 4}), wide(DType::f64, {1, 2, 3, 4});
  Tensor small(DType::f32, {1, 2, 3, 3});
  EXPECT_EQ(error_of([&] { add(x, small, x); }), "add: y shape is [1, 2, 3, 3], expected [1, 2, 3, 4]");
  EXPECT_EQ(error_of([&] { add(x, wide, x); }), "add: y dtype is f64, expected f32, f16 or bf16 beside f32");
  EXPECT_EQ(error_of([&] { add(wide, wide, x); }), "add: z dtype is f32, expected f64 beside f64");
  MutableView part = x.view();
  part.data = x.data<float>() + 1, part.shape[3] = 3;
  View other = x.view();
  other.shape[3] = 3;
  EXPECT_EQ(error_of([&] { add(other, other, part); }), "add: z shares memory with x, expected a place of its own");
  EXPECT_EQ(error_of([&] { convert(x, x); }), "convert: y shares memory with x, expected a place of its own");
  EXPECT_EQ(error_of([&] { convert(x, wide); }), "convert: y dtype is f64, expected f32, f16 or bf16 beside f32");
}

TEST(Add, EmptyTensorsWork) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const Shape& shape : std::vector<Shape>{{0, 2, 3, 4}, {2, 2, 0, 4}, {2, 2, 3, 0}}) {
      Tensor x(dtype, shape), y(dtype, shape);
      add(x, y, x);
      convert(x, y);
    }
  }
}

TEST(Add, EmptyAndHuge) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 62;
  for (const Shape& shape : {Shape{0, kHuge, kHuge, 4}, Shape{kHuge, kHuge, 0, 4}, Shape{kHuge, kHuge, kHuge, 0}}) {
    const MutableView x{DType::f32, nullptr, shape, {1, 1, 1, 1}};
    add(x, x, x);
    convert(x, x);
  }
}

}  // namespace
}  // namespace attend::test::ops
