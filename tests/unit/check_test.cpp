// Checks of what arguments share and how they fit together, against the sets of bytes that views reach.
#include "base/check.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "unit/error_of.hpp"

namespace attend::test {
namespace {

// Where elements lie, from the definition of a view: element (b, h, i, d) is at the sum of index * stride.
std::set<std::int64_t> places(const Shape& shape, const Strides& strides, std::int64_t first) {
  std::set<std::int64_t> all;
  for (std::int64_t b = 0; b < shape[0]; ++b)
    for (std::int64_t h = 0; h < shape[1]; ++h)
      for (std::int64_t i = 0; i < shape[2]; ++i)
        for (std::int64_t d = 0; d < shape[3]; ++d)
          all.insert(first + b * strides[0] + h * strides[1] + i * strides[2] + d * strides[3]);
  return all;
}

bool have_common(const std::set<std::int64_t>& a, const std::set<std::int64_t>& b) {
  return std::any_of(a.begin(), a.end(), [&](std::int64_t place) { return b.contains(place); });
}

std::int64_t size_of(const Shape& shape) {
  return shape[0] * shape[1] * shape[2] * shape[3];
}

// A view from element 500 of a piece of memory, and another `shift` elements further.
struct Pair {
  Shape written, read;
  Strides strides;
  std::int64_t shift;

  bool is_refused() const {
    static std::vector<float> memory(1000);
    const MutableView a{DType::f32, memory.data() + 500, written, strides};
    const View b{DType::f32, memory.data() + 500 + shift, read, strides};
    return !error_of([&] { check_apart("op", "out", a, "x", b); }).empty();
  }
  bool meets() const { return have_common(places(written, strides, 0), places(read, strides, shift)); }
};

class CheckApart : public ::testing::Test {
 protected:
  std::int64_t draw(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(high - low + 1));
  }
  Shape shape_within(const Shape& sizes) {
    Shape shape;
    for (std::size_t d = 0; d < 4; ++d) shape[d] = draw(1, sizes[d]);
    return shape;
  }

  std::mt19937_64 random_{1};
};

// Dimensions in any order and direction, each stepping over all of the smaller ones, with or without gaps.
TEST_F(CheckApart, IsExactForPartsOfOneTensor) {
  int refused = 0, allowed = 0;
  for (int n = 0; n < 20000; ++n) {
    const Shape sizes = {draw(1, 3), draw(1, 3), draw(1, 3), draw(1, 4)};
    std::array<std::size_t, 4> order = {0, 1, 2, 3};
    std::shuffle(order.begin(), order.end(), random_);
    Pair pair{shape_within(sizes), shape_within(sizes), {}, 0};
    std::int64_t step = draw(1, 2);
    for (const std::size_t d : order) {
      pair.strides[d] = draw(0, 1) == 0 ? step : -step;
      step = step * sizes[d] + draw(0, 2);
    }
    pair.shift = draw(-step, step);
    const bool meets = pair.meets();
    ASSERT_EQ(pair.is_refused(), meets) << to_string(pair.written) << " and " << to_string(pair.read) << " strides "
                                        << to_string(pair.strides) << " shift " << pair.shift;
    (meets ? refused : allowed) += 1;
  }
  EXPECT_GT(refused, 2000);
  EXPECT_GT(allowed, 2000);
}

// Whatever the strides are: of dimensions of size 1, or of an input whose elements overlap.
TEST_F(CheckApart, NeverMissesASharedElement) {
  int checked = 0;
  for (int n = 0; n < 50000; ++n) {
    Pair pair{shape_within({2, 2, 3, 9}), shape_within({2, 2, 3, 9}), {}, draw(-30, 30)};
    for (std::int64_t& stride : pair.strides) stride = draw(-9, 9);
    if (std::ssize(places(pair.written, pair.strides, 0)) != size_of(pair.written) || !pair.meets()) continue;
    ASSERT_TRUE(pair.is_refused()) << to_string(pair.written) << " and " << to_string(pair.read) << " strides "
                                   << to_string(pair.strides) << " shift " << pair.shift;
    ++checked;
  }
  EXPECT_GT(checked, 2000);
}

TEST_F(CheckApart, ARowThatStepsLessThanItsLengthIsOneRow) {
  EXPECT_TRUE((Pair{{1, 1, 1, 9}, {1, 1, 1, 9}, {9, 9, 1, 1}, 8}.is_refused()));  // a column of [9, 1], transposed
  EXPECT_TRUE((Pair{{1, 1, 1, 9}, {1, 1, 1, 9}, {9, 9, 1, 1}, -8}.is_refused()));
  EXPECT_FALSE((Pair{{1, 1, 1, 9}, {1, 1, 1, 9}, {9, 9, 1, 1}, 9}.is_refused()));
  EXPECT_TRUE((Pair{{1, 1, 1, 9}, {1, 1, 2, 9}, {9, 9, 3, 1}, 8}.is_refused()));  // an input of overlapping windows
  EXPECT_TRUE((Pair{{1, 1, 5, 1}, {1, 1, 1, 9}, {9, 9, 3, 1}, -8}.is_refused()));
}

// Views of different layouts are compared by the bytes from the first element to the last, in either direction.
TEST_F(CheckApart, StretchesOfOtherLayoutsTouchWithoutMeeting) {
  std::vector<double> memory(100);
  char* const bytes = reinterpret_cast<char*>(memory.data());
  const auto refused = [&](const Shape& shape, const Strides& strides, std::int64_t at, std::int64_t other) {
    const MutableView out{DType::f32, bytes + at, shape, strides};
    const View x{DType::f64, bytes + other, {1, 1, 2, 3}, {6, 6, -3, 1}};  // bytes -24 to 24 around `other`
    return !error_of([&] { check_apart("op", "out", out, "x", x); }).empty();
  };
  EXPECT_FALSE(refused({1, 1, 2, 2}, {4, 4, 2, 1}, 400, 400 + 16 + 24));  // ends where the other begins
  EXPECT_TRUE(refused({1, 1, 2, 2}, {4, 4, 2, 1}, 400, 400 + 16 + 23));
  EXPECT_FALSE(refused({1, 1, 2, 2}, {4, 4, 2, 1}, 400, 400 - 24));
  EXPECT_TRUE(refused({1, 1, 2, 2}, {4, 4, 2, 1}, 400, 400 - 23));
  EXPECT_FALSE(refused({1, 1, 2, 2}, {4, 4, -2, 1}, 400, 400 + 8 + 24));  // rows backwards: bytes -8 to 8
  EXPECT_TRUE(refused({1, 1, 2, 2}, {4, 4, -2, 1}, 400, 400 + 8 + 23));
  EXPECT_FALSE(refused({1, 1, 2, 2}, {4, 4, -2, 1}, 400, 400 - 8 - 24));
  EXPECT_TRUE(refused({1, 1, 2, 2}, {4, 4, -2, 1}, 400, 400 - 8 - 23));
}

TEST_F(CheckApart, MemoryThatIsNoViewHasTheSizeOfItsElements) {
  std::vector<float> memory(100);
  const auto refused = [&](std::int64_t first, std::int64_t bytes_of_element) {
    const MutableView out{DType::f32, memory.data() + first, {1, 1, 1, 4}, {4, 4, 4, 1}};
    const MutableView empty{DType::f32, memory.data() + 40, {1, 0, 1, 4}, {4, 4, 4, 1}};
    return error_of([&] {
      check_apart_from("op", "the mask", memory.data() + 40, {1, 1, 2, 8}, {16, 16, 8, 1}, bytes_of_element,
                       {{"lse", std::nullopt}, {"empty", empty}, {"out", out}});
    });
  };
  const std::string text = "op: out shares memory with the mask, expected a place of its own";
  EXPECT_EQ(refused(36, 1), "");
  EXPECT_EQ(refused(37, 1), text);
  EXPECT_EQ(refused(43, 1), text);
  EXPECT_EQ(refused(44, 1), "");  // 16 bytes are four floats
  EXPECT_EQ(refused(44, 2), text);
  EXPECT_EQ(refused(48, 2), "");
  const MutableView all{DType::f32, memory.data(), {1, 1, 1, 100}, {100, 100, 100, 1}};
  EXPECT_EQ(error_of([&] { check_apart_from("op", "the mask", memory.data(), {1, 0, 2, 8}, {}, 1, {{"out", all}}); }),
            "");
}

// A result may be an input that its header names, in the very same place; nothing else.
TEST_F(CheckApart, InPlaceMeansTheSameElementsInTheSameOrder) {
  std::vector<float> memory(100);
  const MutableView x{DType::f32, memory.data(), {1, 1, 3, 3}, {9, 9, 3, 1}}, far = [&] {
    MutableView view = x;
    view.data = memory.data() + 50;
    return view;
  }();
  const auto refusal = [&](const MutableView& out, const View& input, std::string_view in_place_of,
                           std::string_view or_of) {
    return error_of(
        [&] { check_all_apart("op", {{"out", out, in_place_of, or_of}}, {{"x", input}, {"y", std::nullopt}}); });
  };
  const std::string text = "op: out shares memory with x, expected a place of its own";
  EXPECT_EQ(refusal(x, x, "x", ""), "");
  EXPECT_EQ(refusal(x, x, "y", "x"), "");
  EXPECT_EQ(refusal(x, x, "y", ""), text);
  EXPECT_EQ(refusal(x, x, "", ""), text);
  EXPECT_EQ(refusal(far, x, "", ""), "");
  MutableView other = x;
  other.strides = {9, 9, 1, 3};  // transposed
  EXPECT_EQ(refusal(other, x, "x", ""), text);
  other = x;
  other.strides[1] = 5;  // of a dimension of size 1: no other place
  EXPECT_EQ(refusal(other, x, "x", ""), "");
  other = x;
  other.shape[2] = 2;
  EXPECT_EQ(refusal(other, x, "x", ""), text);
  other = x;
  other.dtype = DType::f16;
  EXPECT_EQ(refusal(other, x, "x", ""), text);
  other = x;
  other.data = memory.data() + 1;
  EXPECT_EQ(refusal(other, x, "x", ""), text);
}

TEST_F(CheckApart, EveryResultIsComparedWithEveryOther) {
  std::vector<float> memory(100);
  const auto row = [&](std::int64_t first) {
    return MutableView{DType::f32, memory.data() + first, {1, 1, 1, 4}, {4, 4, 4, 1}};
  };
  const auto refusal = [&](std::int64_t a, std::int64_t b, std::int64_t c) {
    return error_of([&] {
      check_all_apart("op", {{"a", row(a)}, {"none", std::nullopt}, {"b", row(b)}, {"c", row(c)}},
                      {{"x", View(row(90))}});
    });
  };
  EXPECT_EQ(refusal(0, 4, 8), "");
  EXPECT_EQ(refusal(0, 3, 8), "op: b shares memory with a, expected a place of its own");
  EXPECT_EQ(refusal(8, 20, 5), "op: c shares memory with a, expected a place of its own");
  EXPECT_EQ(refusal(0, 20, 20), "op: c shares memory with b, expected a place of its own");
  EXPECT_EQ(refusal(0, 20, 87), "op: c shares memory with x, expected a place of its own");
}

// Each size that must fit, changed one at a time.
TEST(CheckFitting, NamesTheFirstThatDoesNotFit) {
  const std::vector<float> memory(1000);
  const auto view = [&](const Shape& shape, DType dtype = DType::f32) {
    return View{dtype, memory.data(), shape, contiguous_strides(shape)};
  };
  const Shape q = {2, 4, 3, 8}, k = {2, 2, 5, 8}, v = {2, 2, 5, 6};
  const auto refusal = [&](const View& vq, const View& vk, const View& vv) {
    return error_of([&] { check_fitting("op", {"query", vq}, {"key", vk}, {"value", vv}); });
  };
  EXPECT_EQ(refusal(view(q), view(k), view(v)), "");
  EXPECT_EQ(refusal(view(q), view({1, 2, 5, 8}), view({1, 2, 5, 6})), "op: key batch is 1, expected 2 (query batch)");
  EXPECT_EQ(refusal(view(q), view(k), view({1, 2, 5, 6})), "op: value batch is 1, expected 2 (query batch)");
  EXPECT_EQ(refusal(view(q), view(k), view({2, 1, 5, 6})), "op: value heads is 1, expected 2 (key heads)");
  EXPECT_EQ(refusal(view(q), view(k), view({2, 2, 4, 6})), "op: value length is 4, expected 5 (key length)");
  EXPECT_EQ(refusal(view(q), view({2, 2, 5, 7}), view(v)), "op: key dim is 7, expected 8 (query dim)");
  EXPECT_EQ(refusal(view(q), view(k, DType::f16), view(v)), "op: key dtype is f16, expected f32");
  EXPECT_EQ(refusal(view(q), view(k), view(v, DType::f64)), "op: value dtype is f64, expected f32");
  for (int n = 0; n < 3; ++n) {
    View views[] = {view(q), view(k), view(v)};
    views[n].data = nullptr;
    EXPECT_NE(refusal(views[0], views[1], views[2]).find("data is null"), std::string::npos) << n;
  }
}

TEST(CheckResults, OfEveryDtype) {
  const std::vector<double> memory(1000);
  const Shape shape = {2, 4, 3, 8}, rows = {2, 4, 3, 1};
  const auto view = [&](const Shape& of, DType dtype) {
    return View{dtype, memory.data(), of, contiguous_strides(of)};
  };
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64}) {
    const DType sums = dtype == DType::f64 ? DType::f64 : DType::f32,
                wrong = dtype == DType::f64 ? DType::f32 : DType::f64;
    const View good = view(shape, dtype), lse = view(rows, sums);
    const auto refusal = [&](const View& dout, const View& out, const View& l) {
      return error_of([&] { check_results("op", dout, out, l, shape, dtype); });
    };
    EXPECT_EQ(refusal(good, good, lse), "");
    EXPECT_EQ(refusal(view({2, 4, 2, 8}, dtype), good, lse), "op: dout shape is [2, 4, 2, 8], expected [2, 4, 3, 8]");
    EXPECT_EQ(refusal(good, view({2, 4, 3, 7}, dtype), lse), "op: out shape is [2, 4, 3, 7], expected [2, 4, 3, 8]");
    EXPECT_EQ(refusal(view(shape, wrong), good, lse),
              std::string("op: dout dtype is ") + name(wrong) + ", expected " + name(dtype));
    EXPECT_EQ(refusal(good, view(shape, wrong), lse),
              std::string("op: out dtype is ") + name(wrong) + ", expected " + name(dtype));
    EXPECT_EQ(refusal(good, good, view(shape, sums)), "op: lse shape is [2, 4, 3, 8], expected [2, 4, 3, 1]");
    EXPECT_EQ(refusal(good, good, view(rows, wrong)),
              std::string("op: lse dtype is ") + name(wrong) + ", expected " + name(sums));
    View nowhere = lse;
    nowhere.data = nullptr;
    EXPECT_NE(refusal(good, good, nowhere).find("lse data is null"), std::string::npos);
  }
}

TEST(CheckDtypes, FamiliesAndResults) {
  constexpr DType kAll[] = {DType::f32, DType::f16, DType::bf16, DType::f64};
  for (const DType got : kAll) {
    for (const DType first : kAll) {
      const bool same_family = (got == DType::f64) == (first == DType::f64);
      EXPECT_EQ(error_of([&] { check_family("op", "w", got, first); }).empty(), same_family)
          << name(got) << name(first);
      const bool half = first == DType::f16 || first == DType::bf16;
      const bool fits = got == first || (half && got == DType::f32);
      EXPECT_EQ(error_of([&] { check_result_dtype("op", "y", got, first); }).empty(), fits) << name(got) << name(first);
    }
  }
  EXPECT_EQ(error_of([] { check_family("op", "w", DType::f64, DType::f16); }),
            "op: w dtype is f64, expected f32, f16 or bf16 beside f16");
  EXPECT_EQ(error_of([] { check_family("op", "w", DType::f32, DType::f64); }),
            "op: w dtype is f32, expected f64 beside f64");
  EXPECT_EQ(error_of([] { check_result_dtype("op", "y", DType::f64, DType::bf16); }),
            "op: y dtype is f64, expected bf16 or f32");
  EXPECT_EQ(error_of([] { check_result_dtype("op", "y", DType::f16, DType::f32); }),
            "op: y dtype is f16, expected f32");
  const auto unknown = static_cast<DType>(9);
  for (const std::string& text : {error_of([&] { check_family("op", "w", unknown, DType::f32); }),
                                  error_of([&] { check_result_dtype("op", "w", unknown, DType::f16); }),
                                  error_of([&] { check_dtype("op", "w", unknown, unknown); })})
    EXPECT_EQ(text, "op: w dtype is 9, expected f32, f16, bf16 or f64");
}

TEST(CheckAtLeast, TheLeastItselfIsEnough) {
  EXPECT_EQ(error_of([] { check_at_least("op", "n", 3, 3); }), "");
  EXPECT_EQ(error_of([] { check_at_least("op", "n", 2, 3); }), "op: n is 2, expected at least 3");
}

}  // namespace
}  // namespace attend::test
