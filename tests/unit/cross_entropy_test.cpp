// Tests of the cross-entropy that is fused with the projection to the vocabulary.
#include "attend/cross_entropy.hpp"

#include "reference/cross_entropy.hpp"
#include "unit/error_of.hpp"
#include "unit/on_every_isa.hpp"
#include "unit/op_testing.hpp"

namespace attend::test::ops {
namespace {

using Targets = std::vector<std::int64_t>;

struct LossCase {
  Shape shape;  // of hidden
  std::int64_t vocabulary;
};
const std::vector<LossCase> kCases = {
    {{1, 1, 1, 1}, 1}, {{2, 1, 5, 8}, 13}, {{1, 2, 30, 33}, 65}, {{1, 1, 100, 64}, 300}, {{1, 1, 3, 16}, 2000}};

// Targets of all kinds; every fifth row is ignored.
Targets drawn_targets(const LossCase& c, std::uint64_t key, std::int64_t ignored = -100) {
  Targets targets;
  for (std::int64_t n = 0; n < c.shape[0] * c.shape[1] * c.shape[2]; ++n) {
    const double u = uniform(key, static_cast<std::uint64_t>(n));
    targets.push_back(n % 5 == 4 ? ignored : static_cast<std::int64_t>(u * static_cast<double>(c.vocabulary)));
  }
  return targets;
}
Shape column_of(const Shape& shape) {
  return {shape[0], shape[1], shape[2], 1};
}

// For each row, how far off a logit can be: an f32 sum over the width, relative to the sum of magnitudes.
Tensor logit_errors(const View& hidden, const View& weight) {
  Tensor errors(DType::f64, column_of(hidden.shape));
  for_each_element(errors.shape(), [&](auto b, auto h, auto i, auto) {
    double most = 0;
    for (std::int64_t v = 0; v < weight.length(); ++v) {
      double size = 0;
      for (std::int64_t d = 0; d < weight.dim(); ++d)
        size += std::abs(load(hidden, b, h, i, d) * load(weight, 0, 0, v, d));
      most = std::max(most, size);
    }
    store(errors, b, h, i, 0, 4 * 0x1p-24 * most);
  });
  return errors;
}

TEST(CrossEntropy, KnownValues) {
  Tensor hidden(DType::f32, {1, 1, 2, 1}), weight(DType::f32, {1, 1, 4, 1}), loss(DType::f32, {1, 1, 2, 1});
  store(hidden, 0, 0, 1, 0, 1);  // the first row has equal logits
  store(weight, 0, 0, 2, 0, std::log(5.0));
  cross_entropy(hidden, weight, Targets{3, 2}, loss);
  EXPECT_NEAR(load(loss, 0, 0, 0, 0), std::log(4.0), 1e-6);
  EXPECT_NEAR(load(loss, 0, 0, 1, 0), std::log(8.0 / 5), 1e-6);
}

TEST(CrossEntropy, MatchesTheReferencePerElement) {
  on_every_isa([] {
    for (const DType dtype : kFloats) {
      for (const LossCase& c : kCases) {
        const Tensor hidden = random_tensor(dtype, c.shape, 1),
                     weight = random_tensor(dtype, {1, 1, c.vocabulary, c.shape[3]}, 2);
        const Targets targets = drawn_targets(c, 3);
        const Tensor errors = logit_errors(hidden, weight);
        Tensor expected(DType::f64, column_of(c.shape));
        reference::cross_entropy(hidden, weight, targets, expected, {});
        const auto bound = [&](auto b, auto h, auto i, auto) {
          const double value = load(expected, b, h, i, 0);  // 0 where a row is ignored
          return value == 0 && c.vocabulary > 1
                     ? 0
                     : 2 * load(errors, b, h, i, 0) + 24 * 0x1p-24 + rounding(DType::f32, value);
        };
        for (const MemoryLayout layout : kMemoryLayouts) {
          const Strided from(hidden, layout), with(weight, layout);
          Strided to(DType::f32, expected.shape(), layout);
          cross_entropy(from.view, with.view, targets, to.view);
          expect_within(to.view, expected, bound, name(dtype));
          EXPECT_EQ(to.damaged(), 0);
        }
      }
    }
  });
}

TEST(CrossEntropy, BackwardMatchesTheReferencePerElement) {
  on_every_isa([] {
    for (const DType dtype : kFloats) {
      for (const LossCase& c : kCases) {
        const Tensor hidden = random_tensor(dtype, c.shape, 4),
                     weight = random_tensor(dtype, {1, 1, c.vocabulary, c.shape[3]}, 5),
                     dloss = random_tensor(DType::f32, column_of(c.shape), 6);
        const Targets targets = drawn_targets(c, 7);
        Tensor dhidden(DType::f64, c.shape), dweight(DType::f64, weight.shape()), loss(DType::f32, column_of(c.shape)),
            alone(DType::f32, column_of(c.shape));
        reference::cross_entropy_backward(dloss, hidden, weight, targets, {dhidden, dweight, {}}, {});
        cross_entropy(hidden, weight, targets, alone);
        // A probability is off by the error of its logit and of the sum, and is rounded to bf16 there; the gradients
        // are sums of those.
        const double relative =
            2 * max_abs(logit_errors(hidden, weight)) + 32 * 0x1p-24 + (dtype == DType::bf16 ? 0x1p-8 : 0.0);
        const double rows = static_cast<double>(targets.size()), most = max_abs(dloss);
        const double hidden_size = 2 * most * max_abs(weight),
                     weight_size = 2 * std::sqrt(rows) * most * max_abs(hidden);
        for (const DType out : {dtype, DType::f32}) {
          const auto bound = [&](const Tensor& of, double size) {
            return [&of, out, size, relative](auto b, auto h, auto i, auto d) {
              return relative * size + 1.01 * rounding(out, load(of, b, h, i, d));
            };
          };
          for (const MemoryLayout layout : kMemoryLayouts) {
            const Strided from(hidden, layout), with(weight, layout), given(dloss, layout);
            Strided to_hidden(out, c.shape, layout), to_weight(out, weight.shape(), layout);
            cross_entropy_backward(given.view, from.view, with.view, targets,
                                   {to_hidden.view, to_weight.view, loss.view()});
            expect_within(to_hidden.view, dhidden, bound(dhidden, hidden_size), std::string("dhidden ") + name(dtype));
            expect_within(to_weight.view, dweight, bound(dweight, weight_size), std::string("dweight ") + name(dtype));
            EXPECT_TRUE(same_bits(loss, alone)) << "the loss of backward is that of forward";
            EXPECT_EQ(to_hidden.damaged() + to_weight.damaged(), 0);
          }
        }
      }
    }
  });
}

TEST(CrossEntropy, GradientsByCentralDifferences) {
  const LossCase c{{1, 2, 3, 4}, 7};
  Tensor hidden = random_tensor(DType::f64, c.shape, 8), weight = random_tensor(DType::f64, {1, 1, 7, 4}, 9);
  const Tensor dloss = random_tensor(DType::f64, column_of(c.shape), 10);
  const Targets targets = drawn_targets(c, 11, 3);  // the ignored index may be a token
  Tensor loss(DType::f64, column_of(c.shape)), dhidden(DType::f64, c.shape), dweight(DType::f64, weight.shape());
  cross_entropy_backward(dloss, hidden, weight, targets, {dhidden, dweight, {}}, {.ignore_index = 3});
  const auto value = [&] {
    cross_entropy(hidden, weight, targets, loss, {.ignore_index = 3});
    return dot(loss, dloss);
  };
  expect_gradient(dhidden, hidden, value, "hidden");
  expect_gradient(dweight, weight, value, "weight");
}

TEST(CrossEntropy, WhatIsIgnoredCannotLeak) {
  for (const DType dtype : kFloats) {
    Tensor hidden = random_tensor(dtype, {1, 1, 6, 32}, 12), weight = random_tensor(dtype, {1, 1, 70, 32}, 13);
    const Tensor dloss = random_tensor(DType::f32, {1, 1, 6, 1}, 14);
    const Targets targets = {5, -100, 69, -100, -100, 0};
    const auto run = [&] {
      Tensor all(DType::f32, {1, 1, 6 + 70 + 1, 32});
      MutableView dhidden = all.view(), dweight = all.view();
      dhidden.shape[2] = 6, dweight.shape[2] = 70, dweight.data = all.data<float>() + 6 * 32;
      cross_entropy_backward(dloss, hidden, weight, targets,
                             {dhidden, dweight, view_of(all.data<float>() + 76 * 32, {1, 1, 6, 1})});
      return all;
    };
    const Tensor clean = run();
    for (std::int64_t d = 0; d < 32; ++d)
      for (const std::int64_t i : {1, 3, 4}) store(hidden, 0, 0, i, d, d % 2 == 0 ? NAN : HUGE_VAL);
    EXPECT_TRUE(same_bits(run(), clean)) << name(dtype);
    for (std::int64_t d = 0; d < 32; ++d) EXPECT_EQ(load(clean, 0, 0, 3, d), 0);
    EXPECT_EQ(load(clean, 0, 0, 76, 1), 0);
  }
}

TEST(CrossEntropy, BadValuesStayInTheirRow) {
  Tensor hidden = random_tensor(DType::f32, {1, 1, 3, 8}, 15), loss(DType::f32, {1, 1, 3, 1});
  const Tensor weight = random_tensor(DType::f32, {1, 1, 50, 8}, 16);
  store(hidden, 0, 0, 1, 3, NAN);
  cross_entropy(hidden, weight, Targets{1, 2, 3}, loss);
  EXPECT_TRUE(std::isfinite(load(loss, 0, 0, 0, 0)) && std::isfinite(load(loss, 0, 0, 2, 0)));
  EXPECT_TRUE(std::isnan(load(loss, 0, 0, 1, 0)));
  // Logits far apart: nothing overflows, and a certain row has no loss.
  Tensor far(DType::f32, {1, 1, 2, 1}), steps(DType::f32, {1, 1, 3, 1});
  store(far, 0, 0, 0, 0, 1e4), store(far, 0, 0, 1, 0, -1e4);
  for (std::int64_t v = 0; v < 3; ++v) store(steps, 0, 0, v, 0, static_cast<double>(v));
  Tensor two(DType::f32, {1, 1, 2, 1});
  cross_entropy(far, steps, Targets{2, 1}, two);
  EXPECT_EQ(load(two, 0, 0, 0, 0), 0);
  EXPECT_EQ(load(two, 0, 0, 1, 0), 1e4);
}

// Large enough for several chunks of rows: 32 MiB hold 128 rows of this vocabulary.
TEST(CrossEntropy, BitsDoNotDependOnTheThreads) {
  const LossCase c{{1, 1, 300, 16}, 65536};
  const Tensor hidden = random_tensor(DType::bf16, c.shape, 17),
               weight = random_tensor(DType::bf16, {1, 1, c.vocabulary, 16}, 18),
               dloss = random_tensor(DType::f32, column_of(c.shape), 19);
  const Targets targets = drawn_targets(c, 20);
  Tensor dhidden(DType::bf16, c.shape), dweight(DType::f32, weight.shape()), loss(DType::f32, column_of(c.shape));
  const auto run = [&](Tensor& of) {
    return [&] {
      cross_entropy_backward(dloss, hidden, weight, targets, {dhidden, dweight, loss});
      return of.clone();
    };
  };
  expect_same_for_any_threads(run(dweight), "dweight");
  expect_same_for_any_threads(run(dhidden), "dhidden");
  expect_same_for_any_threads(run(loss), "loss");
  // A row alone has the bits it has among others.
  Tensor alone(DType::bf16, {1, 1, 1, 16}), alone_loss(DType::f32, {1, 1, 1, 1});
  const std::int64_t row = 201;
  cross_entropy_backward(view_of(dloss.data<float>() + row, {1, 1, 1, 1}),
                         view_of(hidden.data<BFloat16>() + row * 16, {1, 1, 1, 16}), weight, Targets{targets[row]},
                         {alone, {}, alone_loss});
  EXPECT_EQ(std::memcmp(alone.view().data, dhidden.data<BFloat16>() + row * 16, 32), 0);
  EXPECT_EQ(alone_loss.data<float>()[0], loss.data<float>()[row]);
}

// 300 rows are three chunks of logits here, 100 rows are one.
TEST(CrossEntropy, ChunksAddUp) {
  const LossCase c{{1, 1, 300, 4}, 65536};
  const Tensor hidden = random_tensor(DType::f32, c.shape, 27),
               weight = random_tensor(DType::f32, {1, 1, c.vocabulary, 4}, 28),
               dloss = random_tensor(DType::f32, column_of(c.shape), 29);
  const Targets targets = drawn_targets(c, 30);
  Tensor dweight(DType::f32, weight.shape()), part(DType::f32, weight.shape()), sum(DType::f64, weight.shape());
  cross_entropy_backward(dloss, hidden, weight, targets, {{}, dweight, {}});
  for (std::int64_t row = 0; row < 300; row += 100) {
    cross_entropy_backward(view_of(dloss.data<float>() + row, {1, 1, 100, 1}),
                           view_of(hidden.data<float>() + row * 4, {1, 1, 100, 4}), weight,
                           std::span(targets).subspan(static_cast<std::size_t>(row), 100), {{}, part, {}});
    for (std::int64_t n = 0; n < sum.size(); ++n) sum.data<double>()[n] += static_cast<double>(part.data<float>()[n]);
  }
  const double size = max_abs(sum);
  expect_within(dweight, sum, [&](auto, auto, auto, auto) { return 0x1p-20 * size; }, "dweight");
}

TEST(CrossEntropy, EmptyTensorsWork) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    const DType wide = dtype == DType::f64 ? DType::f64 : DType::f32;
    Tensor none(dtype, {1, 1, 0, 4}), weight(dtype, {1, 1, 3, 4}), no_loss(wide, {1, 1, 0, 1});
    Tensor dweight = random_tensor(dtype, weight.shape(), 21);
    cross_entropy(none, weight, {}, no_loss);
    cross_entropy_backward(no_loss, none, weight, {}, {{}, dweight, {}});
    EXPECT_EQ(max_abs(dweight), 0);  // overwritten
    Tensor rows = random_tensor(dtype, {1, 1, 2, 4}, 22), drows = random_tensor(dtype, rows.shape(), 23);
    Tensor loss = random_tensor(wide, {1, 1, 2, 1}, 24);
    dweight = random_tensor(dtype, weight.shape(), 25);
    const Tensor dloss = random_tensor(wide, {1, 1, 2, 1}, 26);
    cross_entropy_backward(dloss, rows, weight, Targets{-100, -100}, {drows, dweight, loss});
    EXPECT_EQ(max_abs(drows) + max_abs(dweight) + max_abs(loss), 0);  // all of it is ignored
    Tensor thin(dtype, {1, 1, 2, 0}), thin_weight(dtype, {1, 1, 3, 0});
    cross_entropy(thin, thin_weight, Targets{0, 2}, loss);
    EXPECT_NEAR(load(loss, 0, 0, 1, 0), std::log(3.0), 1e-6);
  }
}

// Logits of a vocabulary that no memory holds are not made for no rows.
TEST(CrossEntropy, EmptyAndHuge) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 62;
  double unused = 0;
  for (const DType dtype : {DType::f32, DType::f64}) {
    const MutableView hidden{dtype, &unused, {1, 1, 0, 0}}, weight{dtype, &unused, {1, 1, kHuge, 0}};
    const MutableView loss{dtype, &unused, {1, 1, 0, 1}};
    cross_entropy(hidden, weight, {}, loss);
    cross_entropy_backward(loss, hidden, weight, {}, {hidden, weight, {}});
  }
  const MutableView hidden{DType::f64, &unused, {1, 1, 1, 0}}, weight{DType::f64, &unused, {1, 1, kHuge, 0}};
  const MutableView loss{DType::f64, &unused, {1, 1, 1, 1}};
  EXPECT_NE(error_of([&] { cross_entropy(hidden, weight, Targets{3}, loss); }).find("bytes of a row's logits"),
            std::string::npos);
}

TEST(CrossEntropy, RefusesBadArguments) {
  Tensor hidden(DType::f32, {1, 1, 2, 4}), weight(DType::f32, {1, 1, 5, 4}), loss(DType::f32, {1, 1, 2, 1});
  Tensor thin(DType::f32, {1, 1, 5, 3}), half(DType::f16, {1, 1, 5, 4}), half_loss(DType::f16, {1, 1, 2, 1});
  EXPECT_EQ(error_of([&] { cross_entropy(hidden, weight, Targets{0, 5}, loss); }),
            "cross_entropy: target 1 is 5, expected 0 to 4, or -100 for a row to ignore");
  EXPECT_EQ(error_of([&] { cross_entropy(hidden, weight, Targets{0, -1}, loss); }),
            "cross_entropy: target 1 is -1, expected 0 to 4, or -100 for a row to ignore");
  EXPECT_EQ(error_of([&] { cross_entropy(hidden, weight, Targets{0}, loss); }),
            "cross_entropy: number of targets is 1, expected 2 (rows of hidden)");
  EXPECT_EQ(error_of([&] { cross_entropy(hidden, thin, Targets{0, 1}, loss); }),
            "cross_entropy: weight shape is [1, 1, 5, 3], expected [1, 1, 5, 4]");
  EXPECT_EQ(error_of([&] { cross_entropy(hidden, half, Targets{0, 1}, loss); }),
            "cross_entropy: weight dtype is f16, expected f32");
  EXPECT_EQ(error_of([&] { cross_entropy(hidden, weight, Targets{0, 1}, half_loss); }),
            "cross_entropy: loss dtype is f16, expected f32");
  EXPECT_EQ(error_of([&] { cross_entropy_backward(loss, hidden, weight, Targets{0, 1}, {{}, thin, {}}); }),
            "cross_entropy_backward: dweight shape is [1, 1, 5, 3], expected [1, 1, 5, 4]");
  EXPECT_EQ(error_of([&] { cross_entropy_backward(loss, hidden, weight, Targets{0, 1}, {hidden, {}, {}}); }),
            "cross_entropy_backward: dhidden shares memory with hidden, expected a place of its own");
}

}  // namespace
}  // namespace attend::test::ops
