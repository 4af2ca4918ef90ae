// Tests of rows gathered from a table, and of the table's gradient.
#include "attend/embedding.hpp"

#include <limits>

#include "reference/embedding.hpp"
#include "unit/error_of.hpp"
#include "unit/on_every_isa.hpp"
#include "unit/op_testing.hpp"

namespace attend::test::ops {
namespace {

using Tokens = std::vector<std::int64_t>;

// Some tokens of a table of `rows`: many of the first ones, and none of the last.
Tokens drawn_tokens(std::int64_t count, std::int64_t rows, std::uint64_t key) {
  Tokens tokens;
  for (std::int64_t n = 0; n < count; ++n) {
    const double u = uniform(key, static_cast<std::uint64_t>(n));
    tokens.push_back(static_cast<std::int64_t>(u * u * static_cast<double>(rows - 1)));
  }
  return tokens;
}

struct EmbeddingCase {
  Shape shape;
  std::int64_t rows;
};
const std::vector<EmbeddingCase> kCases = {
    {{1, 1, 1, 1}, 1}, {{2, 1, 9, 7}, 5}, {{1, 3, 40, 64}, 100}, {{1, 1, 300, 33}, 20}};

TEST(Embedding, CopiesTheRowsOfTheTokens) {
  on_every_isa([] {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64}) {
      for (const EmbeddingCase& c : kCases) {
        const Tensor table = random_tensor(dtype, {1, 1, c.rows, c.shape[3]}, 1);
        const Tokens tokens = drawn_tokens(c.shape[0] * c.shape[1] * c.shape[2], c.rows, 2);
        for (const DType out : {dtype, dtype == DType::f64 ? DType::f64 : DType::f32}) {
          for (const MemoryLayout layout : kMemoryLayouts) {
            const Strided from(table, layout);
            Strided to(out, c.shape, layout);
            embedding(from.view, tokens, to.view);
            std::size_t n = 0;
            for_each_element(c.shape, [&](auto b, auto h, auto i, auto d) {
              EXPECT_EQ(load(to.view, b, h, i, d), load(table, 0, 0, tokens[n], d));
              n += d == c.shape[3] - 1;
            });
            EXPECT_EQ(to.damaged(), 0);
          }
        }
      }
    }
  });
}

TEST(Embedding, OfAWeightInTheFormatOfItsFile) {
  const Tensor numbers = random_tensor(DType::f16, {1, 1, 70, 32}, 3);
  const Weight table(WeightFormat::f16, 70, 32,
                     {static_cast<const std::byte*>(numbers.view().data), static_cast<std::size_t>(numbers.bytes())});
  const Tokens tokens = {69, 0, 3, 3};
  for (const MemoryLayout layout : kMemoryLayouts) {
    Strided y(DType::f32, {1, 1, 4, 32}, layout);
    embedding(table, tokens, y.view);
    for_each_element(y.view.shape, [&](auto b, auto h, auto i, auto d) {
      EXPECT_EQ(load(y.view, b, h, i, d), load(numbers, 0, 0, tokens[static_cast<std::size_t>(i)], d));
    });
  }
  Tensor y(DType::f32, {1, 1, 1, 32});
  EXPECT_EQ(error_of([&] { embedding(table, Tokens{70}, y); }),
            "embedding: token 0 is 70, expected 0 to 69 (the table has 70 rows)");
}

TEST(Embedding, BackwardMatchesTheReferencePerElement) {
  on_every_isa([] {
    for (const DType dtype : kFloats) {
      for (const EmbeddingCase& c : kCases) {
        const Tensor dy = random_tensor(dtype, c.shape, 4);
        const Tokens tokens = drawn_tokens(c.shape[0] * c.shape[1] * c.shape[2], c.rows, 5);
        Tensor expected(DType::f64, {1, 1, c.rows, c.shape[3]});
        reference::embedding_backward(dy, tokens, expected);
        for (const DType out : {dtype, DType::f32}) {
          const auto bound = [&](auto b, auto h, auto i, auto d) {  // made in double, rounded to f32 and then to out
            const double sum = load(expected, b, h, i, d);
            return 1.01 * (rounding(out, sum) + rounding(DType::f32, sum));
          };
          for (const MemoryLayout layout : kMemoryLayouts) {
            const Strided from(dy, layout);
            Strided to(out, expected.shape(), layout);
            embedding_backward(from.view, tokens, to.view);
            expect_within(to.view, expected, bound, name(dtype));
            EXPECT_EQ(to.damaged(), 0);
          }
        }
      }
    }
  });
}

TEST(Embedding, GradientByCentralDifferences) {
  Tensor table = random_tensor(DType::f64, {1, 1, 4, 3}, 6), y(DType::f64, {1, 2, 3, 3}),
         dtable(DType::f64, table.shape());
  const Tensor dy = random_tensor(DType::f64, y.shape(), 7);
  const Tokens tokens = {3, 1, 1, 0, 3, 1};
  embedding_backward(dy, tokens, dtable);
  expect_gradient(
      dtable, table,
      [&] {
        embedding(table, tokens, y);
        return dot(y, dy);
      },
      "table");
}

TEST(Embedding, BitsDoNotDependOnTheThreads) {
  const Tensor dy = random_tensor(DType::f32, {1, 1, 5000, 48}, 8);
  const Tokens tokens = drawn_tokens(5000, 300, 9);
  const auto gradient = [&] {
    Tensor dtable(DType::f32, {1, 1, 300, 48});
    embedding_backward(dy, tokens, dtable);
    return dtable;
  };
  expect_same_for_any_threads(gradient, "dtable");
}

TEST(Embedding, EmptyTensorsWork) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    Tensor table(dtype, {1, 1, 3, 4}), none(dtype, {1, 1, 0, 4}), thin(dtype, {1, 1, 3, 0}), rows(dtype, {1, 1, 2, 0});
    Tensor dtable = random_tensor(dtype, table.shape(), 10);
    embedding(table, Tokens{}, none);
    embedding_backward(none, Tokens{}, dtable);
    EXPECT_EQ(max_abs(dtable), 0);  // overwritten
    embedding(thin, Tokens{0, 2}, rows);
    embedding_backward(rows, Tokens{0, 2}, thin);
  }
}

TEST(Embedding, EmptyAndHuge) {
  for (const std::int64_t huge : {std::int64_t{1} << 40, std::numeric_limits<std::int64_t>::max()}) {
    float unused = 0;
    const MutableView table{DType::f32, &unused, {1, 1, 0, huge}}, y{DType::f32, &unused, {0, 1, 1, huge}};
    embedding(table, {}, y);
    embedding_backward(y, {}, table);
  }
}

TEST(Embedding, RefusesBadArguments) {
  Tensor table(DType::f32, {1, 1, 5, 4}), y(DType::f32, {1, 1, 2, 4}), half(DType::f16, {1, 1, 2, 4});
  EXPECT_EQ(error_of([&] { embedding(table, Tokens{1, 5}, y); }),
            "embedding: token 1 is 5, expected 0 to 4 (the table has 5 rows)");
  EXPECT_EQ(error_of([&] { embedding(table, Tokens{-1, 0}, y); }),
            "embedding: token 0 is -1, expected 0 to 4 (the table has 5 rows)");
  EXPECT_EQ(error_of([&] { embedding(table, Tokens{1}, y); }),
            "embedding: number of tokens is 1, expected 2 (rows of y)");
  EXPECT_EQ(error_of([&] { embedding(table, Tokens{1, 2}, half); }), "embedding: y dtype is f16, expected f32");
  EXPECT_EQ(error_of([&] { embedding_backward(y, Tokens{1, 9}, table); }),
            "embedding_backward: token 1 is 9, expected 0 to 4 (the table has 5 rows)");
  EXPECT_EQ(error_of([&] { embedding_backward(half, Tokens{1, 2}, y); }),
            "embedding_backward: token 1 is 2, expected 0 to 1 (the table has 2 rows)");
}

}  // namespace
}  // namespace attend::test::ops
