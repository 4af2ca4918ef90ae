// Tests of sinusoids, learned positions, ALiBi's slopes and T5's relative bias.
#include "attend/positions.hpp"

#include "attend/attention.hpp"
#include "reference/attention.hpp"
#include "reference/positions.hpp"
#include "unit/error_of.hpp"
#include "unit/op_testing.hpp"

namespace attend::test::ops {
namespace {

TEST(Positions, SinusoidsAreThoseOfThePaper) {
  const std::int64_t far = (std::int64_t{1} << 40) + 7;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64}) {
    for (const std::int64_t dim : {1, 2, 7, 64}) {
      for (const std::int64_t first : {std::int64_t{0}, std::int64_t{-3}, far}) {
        Tensor expected(DType::f64, {2, 3, 5, dim});
        for_each_element(expected.shape(), [&](auto b, auto h, auto i, auto d) {
          const double frequency =
              std::exp(-std::log(100.0) * static_cast<double>(d / 2 * 2) / static_cast<double>(dim));
          const double angle = static_cast<double>(first + i) * frequency;
          store(expected, b, h, i, d, d % 2 == 0 ? std::sin(angle) : std::cos(angle));
        });
        Strided out(dtype, expected.shape(), MemoryLayout::odd);
        sinusoidal(out.view, {.theta = 100, .first_position = first});
        const double angle_error = 4 * 0x1p-52 * static_cast<double>(std::abs(first) + 5);  // of the frequency
        expect_within(
            out.view, expected,
            [&](auto b, auto h, auto i, auto d) {
              return rounding(dtype, load(expected, b, h, i, d)) + angle_error + 0x1p-50;
            },
            name(dtype));
        EXPECT_EQ(out.damaged(), 0);
      }
    }
  }
  Tensor listed(DType::f32, {1, 1, 2, 4}), second(DType::f32, {1, 1, 1, 4});
  sinusoidal(listed, {.positions = {9, 4}});
  sinusoidal(second, {.first_position = 4});
  EXPECT_EQ(std::memcmp(listed.data<float>() + 4, second.data<float>(), 16), 0);
}

TEST(Positions, LearnedOnesAreAddedAndTheirGradientIsSummed) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64}) {
    const Shape shape = {3, 2, 5, 7};
    const Tensor x = random_tensor(dtype, shape, 1), table = random_tensor(dtype, {1, 1, 9, 7}, 2);
    Tensor expected(DType::f64, shape), dtable(DType::f32, {1, 1, 9, 7}), dexpected(DType::f64, {1, 1, 9, 7});
    reference::add_positions(x, table, expected, 3);
    reference::add_positions_backward(x, dexpected, 3);
    for (const MemoryLayout layout : kMemoryLayouts) {
      const Strided from(x, layout), rows(table, layout);
      Strided to(dtype, shape, layout);
      add_positions(from.view, rows.view, to.view, 3);
      expect_within(
          to.view, expected,
          [&](auto b, auto h, auto i, auto d) {
            return 1.01 * rounding(dtype, load(expected, b, h, i, d)) +
                   rounding(DType::f32, load(expected, b, h, i, d));
          },
          name(dtype));
      EXPECT_EQ(to.damaged(), 0);
      add_positions_backward(from.view, dtable, 3);
      expect_within(
          dtable, dexpected,
          [&](auto, auto, auto p, auto d) { return rounding(DType::f32, load(dexpected, 0, 0, p, d)); }, "dtable");
    }
    EXPECT_EQ(load(dtable, 0, 0, 2, 0), 0);  // nobody stood there
    EXPECT_EQ(load(dtable, 0, 0, 8, 0), 0);
  }
}

TEST(Positions, GradientOfTheTableByCentralDifferences) {
  const Tensor x = random_tensor(DType::f64, {2, 1, 3, 4}, 3), dy = random_tensor(DType::f64, {2, 1, 3, 4}, 4);
  Tensor table = random_tensor(DType::f64, {1, 1, 5, 4}, 5), dtable(DType::f64, {1, 1, 5, 4}), y(DType::f64, x.shape());
  add_positions_backward(dy, dtable, 1);
  expect_gradient(
      dtable, table,
      [&] {
        add_positions(x, table, y, 1);
        return dot(y, dy);
      },
      "table");
}

TEST(Positions, BitsDoNotDependOnTheThreads) {
  const Tensor x = random_tensor(DType::f32, {3, 4, 200, 32}, 6), table = random_tensor(DType::f32, {1, 1, 300, 32}, 7);
  expect_same_for_any_threads(
      [&] {
        Tensor y(DType::f32, x.shape());
        add_positions(x, table, y, 11);
        return y;
      },
      "add_positions");
  expect_same_for_any_threads(
      [&] {
        Tensor dtable(DType::f32, table.shape());
        add_positions_backward(x, dtable, 11);
        return dtable;
      },
      "add_positions_backward");
  expect_same_for_any_threads(
      [&] {
        Tensor y(DType::f32, x.shape());
        sinusoidal(y, {.first_position = 11});
        return y;
      },
      "sinusoidal");
}

TEST(Positions, AlibiSlopesAreThoseOfThePaper) {
  const Tensor eight = alibi_slopes(8);
  for (std::int64_t h = 0; h < 8; ++h) EXPECT_EQ(load(eight, 0, h, 0, 0), std::exp2(-static_cast<double>(h + 1)));
  // Six heads: four of the power below, then the first and the third of eight.
  const Tensor six = alibi_slopes(6);
  const double expected[] = {0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125};
  for (std::int64_t h = 0; h < 6; ++h) EXPECT_EQ(load(six, 0, h, 0, 0), expected[h]) << h;
  EXPECT_EQ(load(alibi_slopes(1), 0, 0, 0, 0), std::exp2(-8.0));
}

TEST(Positions, T5BucketsGrowByLogarithm) {
  // The published ones of T5: 32 buckets, both ways.
  const std::pair<std::int64_t, std::int64_t> both[] = {{0, 0},   {-1, 1},   {-7, 7},    {-8, 8},    {-11, 8},
                                                        {-12, 9}, {-16, 10}, {-127, 15}, {-128, 15}, {-5000, 15},
                                                        {1, 17},  {7, 23},   {8, 24},    {16, 26},   {500, 31}};
  for (const auto& [distance, bucket] : both) EXPECT_EQ(t5_bucket(distance), bucket) << distance;
  const T5Buckets causal_ones{.bidirectional = false};
  const std::pair<std::int64_t, std::int64_t> back[] = {{5, 0}, {0, 0}, {-15, 15}, {-16, 16}, {-19, 17}, {-128, 31}};
  for (const auto& [distance, bucket] : back) EXPECT_EQ(t5_bucket(distance, causal_ones), bucket) << distance;
  EXPECT_EQ(t5_bucket(INT64_MIN), 15);
  EXPECT_EQ(t5_bucket(INT64_MAX), 31);
}

TEST(Positions, T5BiasAndItsGradient) {
  const T5Buckets buckets{.bidirectional = true, .count = 8, .max_distance = 20};
  const std::int64_t H = 3, count = 40, first = -21;
  Tensor table = random_tensor(DType::f64, {1, 1, 8, H}, 8), out(DType::f64, {1, H, 1, count});
  t5_bias(table, out, first, buckets);
  for_each_element(out.shape(), [&](auto, auto h, auto, auto x) {
    EXPECT_EQ(load(out, 0, h, 0, x), load(table, 0, 0, t5_bucket(first + x, buckets), h));
  });
  const Tensor dout = random_tensor(DType::f64, out.shape(), 9);
  Tensor dtable(DType::f64, table.shape());
  t5_bias_backward(dout, dtable, first, buckets);
  expect_gradient(
      dtable, table,
      [&] {
        t5_bias(table, out, first, buckets);
        return dot(out, dout);
      },
      "table");
}

// A bias by distance as the matrix it stands for.
Tensor spread(const View& values, std::int64_t M, std::int64_t N) {
  Tensor bias(values.dtype, {1, values.heads(), M, N});
  for_each_element(bias.shape(), [&](auto, auto h, auto i, auto j) {
    store(bias, 0, h, i, j, load(values, 0, h, 0, M - 1 + j - i));
  });
  return bias;
}

struct DistanceCase {
  std::int64_t B, H, Hk, M, N;
  std::int64_t bias_heads;
  Mask mask;
};
std::vector<DistanceCase> distance_cases() {
  return {{2, 4, 2, 37, 37, 4, causal()},
          {1, 2, 2, 150, 70, 2, no_mask()},
          {2, 4, 1, 5, 90, 1, causal()},
          {1, 3, 3, 1, 130, 3, no_mask()},
          {1, 2, 1, 1100, 65, 2, window(100, 20)},
          {1, 1, 1, 1, 1, 1, no_mask()},
          {1, 5, 1, 230, 300, 5, causal()},
          {2, 2, 2, 600, 600, 2, window(50, 0)},
          {1, 2, 1, 600, 600, 1, window(40, 0) | columns(250, 0, 3)}};
}

// However many distances there are, without heads there is nothing to do.
TEST(Positions, T5WithoutHeadsReturnsAtOnce) {
  const std::int64_t huge = std::int64_t{1} << 52;
  float unused = 0;
  const MutableView biases{DType::f32, &unused, {1, 0, 1, huge}}, table{DType::f32, &unused, {1, 1, 32, 0}};
  t5_bias(table, biases, 0);
  t5_bias_backward(biases, table, 0);
}

// The same sums in the same order as for a bias spread out, so the same bits.
TEST(DistanceBias, IsTheSpreadBiasToTheBit) {
  for (const DistanceCase& c : distance_cases()) {
    for (const DType dtype : kFloats) {
      const Tensor q = random_tensor(dtype, {c.B, c.H, c.M, 20}, 1), k = random_tensor(dtype, {c.B, c.Hk, c.N, 20}, 2),
                   v = random_tensor(dtype, {c.B, c.Hk, c.N, 12}, 3);
      const Tensor values = random_tensor(DType::f32, {1, c.bias_heads, 1, c.M + c.N - 1}, 4);
      const Strided strided(values, MemoryLayout::odd);
      const Tensor bias = spread(values, c.M, c.N);
      const Tensor expected = attention(q, k, v, {.mask = c.mask, .bias = bias}).out;
      EXPECT_TRUE(same_bits(attention(q, k, v, {.mask = c.mask, .distance_bias = values}).out, expected));
      EXPECT_TRUE(same_bits(attention(q, k, v, {.mask = c.mask, .distance_bias = strided.view}).out, expected));
    }
  }
}

TEST(DistanceBias, GradientIsThatOfTheReference) {
  for (const DistanceCase& c : distance_cases()) {
    for (const DType dtype : kFloats) {
      const Tensor q = random_tensor(dtype, {c.B, c.H, c.M, 20}, 1), k = random_tensor(dtype, {c.B, c.Hk, c.N, 20}, 2),
                   v = random_tensor(dtype, {c.B, c.Hk, c.N, 12}, 3),
                   dout = random_tensor(dtype, {c.B, c.H, c.M, 12}, 5);
      const Tensor values = random_tensor(DType::f32, {1, c.bias_heads, 1, c.M + c.N - 1}, 4);
      const AttentionOptions options{.mask = c.mask, .distance_bias = values};
      const AttentionResult y = attention(q, k, v, options, {.lse = true});
      const Tensor got = attention_backward(dout, q, k, v, y.out, y.lse, options).ddistance_bias;

      Tensor dq(DType::f64, q.shape()), dk(DType::f64, k.shape()), dv(DType::f64, v.shape());
      Tensor expected(DType::f64, values.shape()), whole(DType::f64, {c.B, c.H, c.M, c.N});
      reference::attention_backward(dout, q, k, v, {.dq = dq, .dk = dk, .dv = dv, .ddistance_bias = expected}, options);
      // The sizes of what is summed, from the full gradient: |dscore| of every pair of a distance.
      const Tensor zeros(DType::f32, {c.B, c.H, c.M, c.N});
      AttentionOptions full = options;
      const Tensor bias = spread(values, c.M, c.N);
      Tensor repeated(DType::f32, {c.B, c.H, c.M, c.N});
      for_each_element(repeated.shape(), [&](auto b, auto h, auto i, auto j) {
        store(repeated, b, h, i, j, load(bias, 0, c.bias_heads == 1 ? 0 : h, i, j));
      });
      full.distance_bias.reset();
      full.bias = repeated;
      reference::attention_backward(dout, q, k, v, {.dq = dq, .dk = dk, .dv = dv, .dbias = whole}, full);
      Tensor size(DType::f64, values.shape());
      for_each_element(whole.shape(), [&](auto b, auto h, auto i, auto j) {
        const std::int64_t head = c.bias_heads == 1 ? 0 : h, x = c.M - 1 + j - i;
        store(size, 0, head, 0, x, load(size, 0, head, 0, x) + std::abs(load(whole, b, h, i, j)));
      });
      const double unit = dtype == DType::f32 ? 1e-5 : 0.02;  // `out` is rounded, and delta is made from it
      expect_within(
          got, expected, [&](auto, auto h, auto, auto x) { return unit * (load(size, 0, h, 0, x) + 0.1); },
          name(dtype));
    }
  }
}

TEST(DistanceBias, GradientByCentralDifferences) {
  const Tensor q = random_tensor(DType::f64, {2, 2, 4, 3}, 1), k = random_tensor(DType::f64, {2, 1, 5, 3}, 2),
               v = random_tensor(DType::f64, {2, 1, 5, 2}, 3), dout = random_tensor(DType::f64, {2, 2, 4, 2}, 4);
  for (const std::int64_t heads : {1, 2}) {
    Tensor values = random_tensor(DType::f64, {1, heads, 1, 8}, 5);
    const AttentionOptions options{.mask = causal(), .distance_bias = values};
    const AttentionResult y = attention(q, k, v, options, {.lse = true});
    const auto g = attention_backward(dout, q, k, v, y.out, y.lse, options);
    expect_gradient(g.ddistance_bias, values, [&] { return dot(attention(q, k, v, options).out, dout); }, "values");
  }
}

TEST(DistanceBias, BitsDoNotDependOnTheThreads) {
  const Tensor q = random_tensor(DType::f32, {2, 2, 700, 16}, 1);
  for (const std::int64_t heads : {1, 2}) {
    const Tensor values = random_tensor(DType::f32, {1, heads, 1, 1399}, 2);
    for (const Mask& mask : {no_mask(), causal(), window(150, 0)}) {
      const AttentionOptions options{.mask = mask, .distance_bias = values};
      expect_same_for_any_threads(
          [&] {
            const AttentionResult y = attention(q, q, q, options, {.lse = true});
            return attention_backward(q, q, q, q, y.out, y.lse, options).ddistance_bias;
          },
          "ddistance_bias");
    }
  }
}

TEST(DistanceBias, EmptyInputsGiveZeros) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const Tensor q = random_tensor(dtype, {1, 2, 3, 4}, 1), none(dtype, {1, 2, 0, 4});
    const Tensor values = random_tensor(dtype, {1, 2, 1, 2}, 2);
    const AttentionOptions options{.distance_bias = values};
    const AttentionResult y = attention(q, none, none, options, {.lse = true});
    EXPECT_EQ(max_abs(y.out), 0);
    EXPECT_EQ(max_abs(attention_backward(q, q, none, none, y.out, y.lse, options).ddistance_bias), 0);
  }
}

TEST(Positions, RefuseBadArguments) {
  Tensor x(DType::f32, {1, 1, 5, 4}), table(DType::f32, {1, 1, 6, 4}), wrong(DType::f32, {1, 1, 6, 3});
  EXPECT_EQ(error_of([&] { add_positions(x, table, x, 2); }),
            "add_positions: first_position is 2 and x has 5 rows, expected them within the 6 positions of table");
  EXPECT_EQ(error_of([&] { add_positions(x, table, x, -1); }),
            "add_positions: first_position is -1 and x has 5 rows, expected them within the 6 positions of table");
  EXPECT_EQ(error_of([&] { add_positions(x, wrong, x); }),
            "add_positions: table shape is [1, 1, 6, 3], expected [1, 1, 6, 4]");
  EXPECT_EQ(error_of([&] { sinusoidal(x, {.theta = -1}); }),
            "sinusoidal: theta is -1.000000, expected a finite number above 0");
  EXPECT_EQ(error_of([&] { sinusoidal(x, {.positions = {1}}); }),
            "sinusoidal: number of positions is 1, expected 5 (length)");
  EXPECT_EQ(error_of([&] { alibi_slopes(0); }), "alibi_slopes: heads is 0, expected 1 to 1048576");
  EXPECT_EQ(
      error_of([&] { t5_bucket(0, {.count = 6}); }),
      "t5_bucket: number of buckets is 6, expected a multiple of 4 up to 1048576 (half for each direction, half of "
      "that by logarithm)");
  EXPECT_EQ(error_of([&] { t5_bucket(0, {.bidirectional = false, .max_distance = 16}); }),
            "t5_bucket: max_distance is 16, expected more than 16 (the distances that have a bucket of their own)");
  Tensor out(DType::f32, {1, 4, 1, 9});
  EXPECT_EQ(error_of([&] { t5_bias(table, out, 0); }), "t5_bias: table shape is [1, 1, 6, 4], expected [1, 1, 32, 4]");
  const Tensor q(DType::f32, {1, 4, 5, 8}), values(DType::f32, {1, 4, 1, 8}), bias(DType::f32, {1, 1, 5, 5});
  EXPECT_EQ(error_of([&] { attention(q, q, q, {.distance_bias = values}); }),
            "attention: distance_bias shape is [1, 4, 1, 8], expected [1, 4, 1, 9]");
  EXPECT_EQ(error_of([&] { attention(q, q, q, {.bias = bias, .distance_bias = out}); }),
            "attention: bias and distance_bias are both given, expected one of them");
}

}  // namespace
}  // namespace attend::test::ops
