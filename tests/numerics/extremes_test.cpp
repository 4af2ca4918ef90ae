// Extreme scores, rows without keys, and empty tensors.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/elements.hpp"
#include "support/check.hpp"
#include "support/tensors.hpp"

namespace attend::test {
namespace {

using std::int64_t;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};

Case scored_case(MaskKind mask) {
  Case c;
  c.H = c.Hk = 2;
  c.M = 9;
  c.N = 140;
  c.D = 4;
  c.E = 6;
  c.mask = mask;
  c.scale = 1;
  c.backward = true;
  return c;
}

// Scores are exactly row(i) * key(j), both exact in bf16 and f16.
void check_scores(const std::string& what, const std::function<float(int64_t)>& row,
                  const std::function<float(int64_t)>& key) {
  for (const MaskKind mask : {MaskKind::none, MaskKind::causal_last, MaskKind::causal_window}) {
    const Case base = scored_case(mask);
    Problem p(base);
    for (int64_t n = 0; n < std::ssize(p.q); ++n) {
      p.q[static_cast<std::size_t>(n)] = n % base.D == 0 ? row(n / base.D % base.M) : 0;
    }
    for (int64_t n = 0; n < std::ssize(p.k); ++n) {
      p.k[static_cast<std::size_t>(n)] = n % base.D == 0 ? key(n / base.D % base.N) : 0;
    }
    const Truth truth = true_attention(p);
    const auto pinned = check_truth(p, truth);
    EXPECT_TRUE(pinned.empty()) << what << ": " << summary(pinned);
    for (const DType dtype : kDTypes) {
      Case c = base;
      c.dtype = dtype;
      std::vector<std::string> failures;
      const Computed computed = compute(p, c, failures);
      const auto beyond = compare(p, truth, naive_attention(p, dtype), computed);
      failures.insert(failures.end(), beyond.begin(), beyond.end());
      EXPECT_TRUE(failures.empty()) << what << " " << c.name() << ": " << summary(failures);
    }
  }
}

TEST(Extremes, ScoresOfTenThousand) {
  check_scores(
      "+-1e4", [](int64_t i) { return i % 2 == 0 ? 100.0f : -100.0f; },
      [](int64_t j) { return j % 3 == 0 ? 100.0f : -100.0f; });
  check_scores("-1e4 everywhere", [](int64_t) { return 100.0f; }, [](int64_t) { return -100.0f; });
}

TEST(Extremes, ScoresOfSixtyThousand) {
  check_scores(
      "+-6e4", [](int64_t i) { return i % 2 == 0 ? 240.0f : -240.0f; },
      [](int64_t j) { return j % 5 == 0 ? 250.0f : -250.0f; });
  check_scores("-6e4 everywhere", [](int64_t) { return -240.0f; }, [](int64_t) { return 250.0f; });
  // The largest comes late: all that was summed before it must vanish.
  check_scores("rising to 6e4", [](int64_t) { return 240.0f; }, [](int64_t j) { return static_cast<float>(j); });
}

TEST(Extremes, AllEqual) {
  check_scores("all 0", [](int64_t) { return 0.0f; }, [](int64_t) { return 0.0f; });
  check_scores("all 6", [](int64_t) { return 2.0f; }, [](int64_t) { return 3.0f; });
}

TEST(Extremes, OneHot) {
  check_scores(
      "one key", [](int64_t i) { return static_cast<float>(32 + i); },
      [](int64_t j) { return j == 77 ? 128.0f : -128.0f; });
}

// All weight on one key: its value comes out exactly.
TEST(Extremes, OneHotIsExact) {
  for (const DType dtype : kDTypes) {
    const Problem p(scored_case(MaskKind::none));
    Tensors t(p, dtype);
    set_all(t.q, 0);
    set_all(t.k, 0);
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t i = 0; i < 9; ++i) store(t.q, 0, h, i, 0, 100);
      store(t.k, 0, h, 77, 0, 100);
    }
    t.forward(p.options(dtype));
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t i = 0; i < 9; ++i) {
        for (int64_t e = 0; e < 6; ++e) EXPECT_EQ(load(t.out, 0, h, i, e), load(t.v, 0, h, 77, e)) << name(dtype);
      }
    }
  }
}

// Where tanh is 1 but for its last bits its slope is small, and still right to its last digits.
TEST(Extremes, ASaturatedSoftCapKeepsItsSlope) {
  const int64_t N = 7;
  Tensor q(DType::f32, {1, 1, 1, 1}), k(DType::f32, {1, 1, N, 1}), v(DType::f32, {1, 1, N, 1});
  Tensor dout(DType::f32, {1, 1, 1, 1});
  q.data<float>()[0] = dout.data<float>()[0] = 1;
  for (int64_t j = 0; j < N; ++j) {
    k.data<float>()[j] = static_cast<float>(3 * j);
    v.data<float>()[j] = static_cast<float>(j % 3) - 0.75F;
  }
  const AttentionOptions options{.scale = 1.0, .softcap = 2.0};
  const AttentionResult r = attention(q, k, v, options, {.lse = true});
  const AttentionGradientTensors g = attention_backward(dout, q, k, v, r.out, r.lse, options);

  double sum = 0, out = 0;
  for (int64_t j = 0; j < N; ++j) {
    const double weight = std::exp(2 * std::tanh(1.5 * static_cast<double>(j)));
    sum += weight;
    out += weight * static_cast<double>(v.data<float>()[j]);
  }
  out /= sum;
  for (int64_t j = 0; j < N; ++j) {
    const double x = 1.5 * static_cast<double>(j), slope = 1 / (std::cosh(x) * std::cosh(x));
    const double wanted = std::exp(2 * std::tanh(x)) / sum * (static_cast<double>(v.data<float>()[j]) - out) * slope;
    EXPECT_NEAR(static_cast<double>(g.dk.data<float>()[j]) / wanted, 1, 4e-6) << "key " << j << ", slope " << slope;
  }
}

void expect_all(const View& x, double value, const std::string& what) {
  for (int64_t b = 0; b < x.batch(); ++b) {
    for (int64_t h = 0; h < x.heads(); ++h) {
      for (int64_t i = 0; i < x.length(); ++i) ASSERT_TRUE(row_is(x, b, h, i, value)) << what << " row " << i;
    }
  }
}

void expect_blind(Tensors& t, const AttentionOptions& options, const std::string& what) {
  t.run(options);
  expect_all(t.out, 0, what + " out");
  expect_all(t.lse, -kInfinity, what + " lse");
  expect_all(t.dq, 0, what + " dq");
  expect_all(t.dk, 0, what + " dk");
  expect_all(t.dv, 0, what + " dv");
  if (!t.dbias.empty()) expect_all(t.dbias, 0, what + " dbias");
}

// However the keys vanish: zeros, LSE -inf, zero gradients.
TEST(Extremes, RowsWithoutKeysGiveZeros) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const BiasKind bias : {BiasKind::none, BiasKind::full}) {
      Case c = scored_case(MaskKind::hidden_all);
      c.bias = bias;
      const Problem p(c);
      Tensors t(p, dtype);
      AttentionOptions options = p.options(dtype);
      expect_blind(t, options, "causal");
      options.mask = padding({0});
      expect_blind(t, options, "padding");
      options.mask = left_padding({c.N});
      expect_blind(t, options, "left padding");
      options.mask = segments({0, 0, 0});
      expect_blind(t, options, "segments");
      options.mask = segments({0, c.M, c.M}, {0, 0, c.N});
      expect_blind(t, options, "segments without keys");
      options.mask = blocks(c.M, c.N, 1, 1, 1, {0});
      expect_blind(t, options, "blocks");
      const std::uint8_t no = 0;
      options.mask = dense(&no, {1, 1, 1, 1});
      expect_blind(t, options, "dense");
      options.mask = padding({70}) & left_padding({70});
      expect_blind(t, options, "composed");
    }
  }
}

// -inf in a bias, or from a rule, hides a key as a mask does.
TEST(Extremes, MinusInfinityHidesAKey) {
  for (const DType dtype : kDTypes) {
    const Problem p(scored_case(MaskKind::none));
    Tensors t(p, dtype);
    const float hidden = -std::numeric_limits<float>::infinity();
    AttentionOptions options = p.options(dtype);
    options.bias = view_of(&hidden, {1, 1, 1, 1});
    expect_blind(t, options, "bias of -inf");

    // Half of the keys: as if they were not there.
    std::vector<float> half(140, 0.0f);
    for (std::size_t j = 70; j < half.size(); ++j) half[j] = hidden;
    options.bias = view_of(std::as_const(half).data(), {1, 1, 1, 140});
    t.run(options);
    Tensors padded(p, dtype);
    options.bias.reset();
    options.mask = padding({70});
    padded.run(options);
    EXPECT_EQ(t.difference(padded), "") << name(dtype);
  }
}

// A sink takes the weight that no key does.
TEST(Extremes, BlindRowsWithSinks) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    Case c = scored_case(MaskKind::hidden_all);
    c.sinks = true;
    const Problem p(c);
    Tensors t(p, dtype);
    t.run(p.options(dtype));
    expect_all(t.out, 0, "out");
    expect_all(t.dq, 0, "dq");
    expect_all(t.dk, 0, "dk");
    expect_all(t.dv, 0, "dv");
    expect_all(t.dsinks, 0, "dsinks");
    for (int64_t h = 0; h < c.H; ++h) {
      for (int64_t i = 0; i < c.M; ++i) {
        EXPECT_NEAR(load(t.lse, 0, h, i, 0), static_cast<double>(p.sinks[static_cast<std::size_t>(h)]), 1e-5);
      }
    }
  }
}

TEST(Extremes, EmptyBatchQueriesOrKeys) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (int mask = 0; mask <= static_cast<int>(kLastMask); ++mask) {
      for (const auto& [B, M, N] : {std::tuple{0, 3, 4}, std::tuple{2, 0, 4}, std::tuple{2, 3, 0},
                                    std::tuple{1, 500, 0}, std::tuple{0, 0, 0}, std::tuple{2, 0, 0}}) {
        Case c = scored_case(static_cast<MaskKind>(mask));
        c.B = B;
        c.M = M;
        c.N = N;
        if (B == 0 && (c.mask == MaskKind::padding || c.mask == MaskKind::prefix || c.mask == MaskKind::left_padding ||
                       c.mask == MaskKind::causal_at || c.mask == MaskKind::padding_causal)) {
          continue;  // a list of no values is refused
        }
        const Problem p(c);
        Tensors t(p, dtype);
        t.run(p.options(dtype));
        expect_all(t.out, 0, "out");
        expect_all(t.lse, -kInfinity, "lse");
        expect_all(t.dq, 0, "dq");
        expect_all(t.dk, 0, "dk");
        expect_all(t.dv, 0, "dv");
      }
    }
  }
}

// Nothing to do, however large the other sizes: no memory, no long loop.
void run_empty_and_huge() {
  const int64_t huge = int64_t{1} << 40;
  const float none = 0;
  for (const Shape& rows : {Shape{huge, 1, 0, 8}, Shape{1, huge, 0, 8}, Shape{0, huge, huge, 8}}) {
    for (const int64_t keys : {int64_t{0}, rows[0] == 0 ? huge : int64_t{0}}) {
      const Shape keys_shape = {rows[0], 1, keys, 8};
      const View q = view_of(&none, rows), k = view_of(&none, keys_shape);
      float unused = 0;
      const MutableView out = view_of(&unused, rows), dk = view_of(&unused, keys_shape);
      const Shape column = {rows[0], rows[1], rows[2], 1};
      attention(q, k, k, out, {}, {.lse = view_of(&unused, column), .weights = {}});
      attention_backward(q, q, k, k, q, view_of(&none, column), {out, dk, dk, {}, {}});
    }
  }
}

TEST(ExtremesDeathTest, EmptyAndHuge) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto run = [] {
    alarm(60);  // ends a loop over 2^40 nothings
    run_empty_and_huge();
    std::exit(0);
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace attend::test
