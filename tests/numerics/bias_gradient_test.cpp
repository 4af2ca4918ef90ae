// Gradients that are stored in f32 keep f32's bounds next to bf16 and f16 inputs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "attend/attention.hpp"
#include "support/buffer.hpp"
#include "support/check.hpp"
#include "support/tensors.hpp"

namespace attend::test {
namespace {

using std::int64_t;

constexpr DType kHalf[] = {DType::bf16, DType::f16};

Case bias_case(int number, int64_t rows, int64_t keys) {
  Case c;
  c.B = 2;
  c.H = 4;
  c.Hk = 2;
  c.M = rows;
  c.N = keys;
  c.D = 64;
  c.E = number % 2 == 0 ? 64 : 40;
  c.mask = number % 3 == 0 ? MaskKind::causal_last : number % 3 == 1 ? MaskKind::none : MaskKind::causal_window;
  c.bias = static_cast<BiasKind>(1 + number % static_cast<int>(BiasKind::one));
  c.f32_bias = number % 2 == 0;
  c.sinks = number % 4 == 0;
  c.softcap = number % 4 == 1 ? 5 : 0;
  c.dropout = number % 4 == 2 ? 0.25 : 0;
  c.backward = true;
  return c;
}

void check(const Case& base) {
  const Problem p(base);
  const Truth truth = true_attention(p);
  const Results naive = naive_attention(p, DType::f32);
  for (const DType dtype : kHalf) {
    Case c = base;
    c.dtype = dtype;
    std::vector<std::string> failures;
    const Computed computed = compute(p, c, failures);
    const std::vector<std::string> beyond = compare_wide_gradients(p, truth, naive, computed);
    failures.insert(failures.end(), beyond.begin(), beyond.end());
    EXPECT_TRUE(failures.empty()) << c.name() << ": " << summary(failures);
  }
}

TEST(BiasGradient, KeepsTheBoundsOfF32) {
  for (int number = 0; number < 12; ++number) check(bias_case(number, 70, 190));
}

TEST(BiasGradient, KeepsTheBoundsOfF32OnLongRows) {
  for (const int number : {0, 3}) check(bias_case(number, 300, 1100));
}

// The LSE and the output of more keys than the call has: delta of the whole rows is known from the output only.
TEST(BiasGradient, OfPartOfTheKeysUsesTheOutputOfAll) {
  Case c = bias_case(1, 40, 150);
  c.mask = MaskKind::none;
  c.bias = BiasKind::full;
  const Problem p(c);
  for (const DType dtype : kHalf) {
    const Tensor q = to_tensor(dtype, p.q_shape(), p.q), k = to_tensor(dtype, p.k_shape(), p.k),
                 v = to_tensor(dtype, p.v_shape(), p.v), dout = to_tensor(dtype, p.out_shape(), p.dout);
    AttentionOptions options = p.options(dtype);
    const AttentionResult r = attention(q, k, v, options, {.lse = true});
    const AttentionGradientTensors whole = attention_backward(dout, q, k, v, r.out, r.lse, options);
    constexpr int64_t kFirst = 96;
    const auto first_keys = [](View x, std::size_t dim) {
      x.shape[dim] = kFirst;
      return x;
    };
    options.bias = first_keys(*options.bias, 3);
    const AttentionGradientTensors part =
        attention_backward(dout, q, first_keys(k, 2), first_keys(v, 2), r.out, r.lse, options);
    const std::vector<double> all = to_doubles(whole.dbias), some = to_doubles(part.dbias);
    double largest = 0;
    for (const double x : all) largest = std::max(largest, std::abs(x));
    for (int64_t row = 0; row < c.B * c.H * c.M; ++row)
      for (int64_t j = 0; j < kFirst; ++j)
        ASSERT_NEAR(some[static_cast<std::size_t>(row * kFirst + j)], all[static_cast<std::size_t>(row * c.N + j)],
                    0.02 * largest)
            << name(dtype) << " row " << row << " key " << j;
  }
}

TEST(BiasGradient, ChangesNoBitOfTheOthers) {
  for (int number = 0; number < 6; ++number)
    for (const DType dtype : kHalf) {
      const Case c = bias_case(number, 90, 200);
      const Problem p(c);
      Tensors with(p, dtype), without(p, dtype);
      const AttentionOptions options = p.options(dtype);
      for (Tensors* t : {&with, &without}) t->forward(options);
      with.backward(options);
      const AttentionGradients gradients{without.dq, without.dk, without.dv, {}, {}, {}};
      attention_backward(without.dout, without.q, without.k, without.v, without.out, without.lse, gradients, options);
      EXPECT_TRUE(same_bits(with.dq, without.dq) && same_bits(with.dk, without.dk) && same_bits(with.dv, without.dv))
          << c.problem_name() << " " << name(dtype);
    }
}

// The gradient of a bias by distance, against the same problem in double.
TEST(BiasGradient, ByDistanceKeepsABoundOfF32) {
  constexpr int64_t H = 2, M = 150, N = 260, D = 64, E = 32;
  Case c;
  c.H = c.Hk = H;
  c.M = M;
  c.N = N;
  c.D = D;
  c.E = E;
  c.backward = true;
  const Problem p(c);
  std::vector<float> values(static_cast<std::size_t>(H * (M + N - 1)));
  for (std::size_t n = 0; n < values.size(); ++n) values[n] = static_cast<float>(n % 13) / 8.0F;
  const auto run = [&](DType dtype, bool weights) {
    const DType wide = dtype == DType::f64 ? DType::f64 : DType::f32;
    const Tensor q = to_tensor(dtype, p.q_shape(), p.q), k = to_tensor(dtype, p.k_shape(), p.k),
                 v = to_tensor(dtype, p.v_shape(), p.v), dout = to_tensor(dtype, p.out_shape(), p.dout),
                 bias = to_tensor(wide, {1, H, 1, M + N - 1}, values);
    AttentionOptions options;
    options.distance_bias = bias;
    const AttentionResult r = attention(q, k, v, options, {.lse = true, .weights = weights});
    const AttentionGradientTensors g = attention_backward(dout, q, k, v, r.out, r.lse, options);
    return std::pair{to_doubles(g.ddistance_bias), weights ? to_doubles(r.weights) : std::vector<double>()};
  };
  const auto [expected, weights] = run(DType::f64, true);
  std::vector<double> size(expected.size());  // of the terms of each sum
  for (int64_t row = 0; row < H * M; ++row) {
    const int64_t h = row / M;
    const double* w = weights.data() + row * N;
    std::vector<double> dw(N);
    double terms = 0;
    for (int64_t j = 0; j < N; ++j) {
      for (int64_t e = 0; e < E; ++e)
        dw[static_cast<std::size_t>(j)] +=
            std::abs(static_cast<double>(p.dout[static_cast<std::size_t>(row * E + e)]) *
                     static_cast<double>(p.v[static_cast<std::size_t>((h * N + j) * E + e)]));
      terms += w[j] * dw[static_cast<std::size_t>(j)];
    }
    for (int64_t j = 0; j < N; ++j)
      size[static_cast<std::size_t>(h * (M + N - 1) + M - 1 + j - row % M)] +=
          w[j] * (dw[static_cast<std::size_t>(j)] + terms);
  }
  for (const DType dtype : kHalf) {
    const std::vector<double> got = run(dtype, false).first;
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t n = 0; n < got.size(); ++n)
      ASSERT_NEAR(got[n], expected[n], 16 * 0x1p-24 * size[n]) << name(dtype) << " element " << n;
  }
}

}  // namespace
}  // namespace attend::test
