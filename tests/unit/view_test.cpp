// Views, shapes and strides as callers write them: what is left out is contiguous or an error, never a stride of 0.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "attend/attend.hpp"
#include "unit/error_of.hpp"
#include "unit/op_testing.hpp"

namespace attend {
namespace {

using test::error_of;
using test::ops::random_tensor;

constexpr const char* kUnset = "its strides are not set";

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && std::memcmp(a.view().data, b.view().data, static_cast<std::size_t>(a.bytes())) == 0;
}

// Fewer than four sizes or strides do not compile.
template <class T>
concept TakesTwo = requires { T{1, 2}; } || requires { T{1, 2, 3}; } || requires { T{1}; };
template <class T>
concept MadeOfTwoSizes = requires { T(DType::f32, {4, 8}); };
static_assert(!TakesTwo<Shape> && !TakesTwo<Strides>);
static_assert(!MadeOfTwoSizes<Tensor>);
static_assert(std::is_constructible_v<Shape, int, int, int, int>);

TEST(Views, ByTypeDataAndShapeAreContiguous) {
  const Tensor x = random_tensor(DType::f32, {2, 3, 4, 5}, 1);
  const View by_place{DType::f32, x.view().data, {2, 3, 4, 5}};
  const View by_name{.dtype = DType::f32, .data = x.view().data, .shape = {2, 3, 4, 5}};
  for (const View& view : {by_place, by_name}) EXPECT_EQ(view.strides, (Strides{60, 20, 5, 1}));
  Tensor y(DType::f32, {2, 3, 4, 5});
  const MutableView out{DType::f32, y.view().data, y.shape()};
  softmax(by_place, out);
  Tensor expected(DType::f32, {2, 3, 4, 5});
  softmax(x, expected);
  EXPECT_TRUE(same_bits(y, expected));
}

TEST(Views, GiveAttentionEveryElement) {
  const Tensor q = random_tensor(DType::f32, {1, 2, 9, 8}, 1), k = random_tensor(DType::f32, {1, 2, 9, 8}, 2),
               v = random_tensor(DType::f32, {1, 2, 9, 8}, 3);
  const View short_q{DType::f32, q.view().data, q.shape()}, short_k{DType::f32, k.view().data, k.shape()},
      short_v{DType::f32, v.view().data, v.shape()};
  EXPECT_TRUE(same_bits(attention(short_q, short_k, short_v).out, attention(q, k, v).out));
}

TEST(Views, WhoseStridesWereNeverSetAreRefused) {
  const Tensor x = random_tensor(DType::f32, {1, 1, 4, 8}, 1);
  Tensor y(DType::f32, {1, 1, 4, 8});
  View by_field;
  by_field.data = x.view().data;
  by_field.shape = {1, 1, 4, 8};
  View partly = by_field;
  partly.strides[3] = 1;
  const View none{DType::f32, x.view().data, {1, 1, 4, 8}, {}};
  for (const View& view : {by_field, partly, none}) {
    EXPECT_NE(error_of([&] { softmax(view, y); }).find(kUnset), std::string::npos);
    EXPECT_NE(error_of([&] { attention(view, x, x); }).find(kUnset), std::string::npos);
    EXPECT_NE(error_of([&] { attention(x, view, x); }).find(kUnset), std::string::npos);
    EXPECT_NE(error_of([&] { attention(x, x, view); }).find(kUnset), std::string::npos);
  }
  EXPECT_EQ(
      error_of([&] { softmax(by_field, y); }),
      "softmax: x shape is [1, 1, 4, 8] and its strides are not set; give the strides, or make the view by dtype, "
      "data and shape: it is then contiguous");
  View empty = by_field;
  empty.shape = {0, 1, 4, 8};
  Tensor none_out(DType::f32, {0, 1, 4, 8});
  EXPECT_EQ(error_of([&] { softmax(empty, none_out); }), "");  // nothing is read
}

TEST(Views, MayRepeatByStridesOfZero) {
  const Tensor row = random_tensor(DType::f32, {1, 1, 1, 8}, 1), q = random_tensor(DType::f32, {1, 1, 4, 8}, 2);
  Tensor rows(DType::f32, {1, 1, 4, 8});
  for (int i = 0; i < 4; ++i) std::memcpy(rows.data<float>() + i * 8, row.data<float>(), 32);
  const View repeated{DType::f32, row.view().data, {1, 1, 4, 8}, {0, 0, 0, 1}};
  EXPECT_TRUE(same_bits(attention(q, repeated, repeated).out, attention(q, rows, rows).out));
  Tensor ones(DType::f32, {1, 1, 4, 8});
  for (int n = 0; n < 32; ++n) ones.data<float>()[n] = row.data<float>()[0];
  const View all{DType::f32, row.view().data, {1, 1, 4, 8}, {0, 0, 0, 0}};
  EXPECT_TRUE(same_bits(attention(all, all, all).out, attention(ones, ones, ones).out));
}

TEST(Views, OfDenseMasksAreContiguousToo) {
  const Tensor x = random_tensor(DType::f32, {1, 1, 4, 8}, 1);
  const std::uint8_t bits[16] = {1, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1};
  const Mask rule{{DenseRule{bits, {1, 1, 4, 4}}}};
  EXPECT_TRUE(
      same_bits(attention(x, x, x, {.mask = rule}).out, attention(x, x, x, {.mask = dense(bits, {1, 1, 4, 4})}).out));
  const Mask unset{{DenseRule{bits, {1, 1, 4, 4}, {}}}};
  EXPECT_NE(error_of([&] { attention(x, x, x, {.mask = unset}); }).find(kUnset), std::string::npos);
}

TEST(Shapes, AreFourSizesToTakeApart) {
  const Shape shape{2, 3, 4, 5};
  const auto [B, H, M, D] = shape;
  EXPECT_EQ(B * 1000 + H * 100 + M * 10 + D, 2345);
  EXPECT_EQ(Shape(), (Shape{0, 0, 0, 0}));
  EXPECT_EQ(Strides()[0], kUnsetStride);
}

}  // namespace
}  // namespace attend
