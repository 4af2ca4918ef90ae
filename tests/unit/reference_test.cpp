// Tests of the reference: against a textbook of its own, by central differences, and at the edges.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "base/elements.hpp"
#include "reference/attention.hpp"
#include "unit/small_problem.hpp"

namespace attend {
namespace {

using std::int64_t;
namespace small = test::small;
using small::Draws;
using small::Problem;
using small::random_problem;

constexpr std::uint64_t kProblems = 380;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Forward {
  Tensor out, lse, weights;
};
Forward run(const Problem& p) {
  Forward f{Tensor(DType::f64, {p.B, p.H, p.M, p.E}), Tensor(DType::f64, {p.B, p.H, p.M, 1}),
            Tensor(DType::f64, {p.B, p.H, p.M, p.N})};
  reference::attention(p.q, p.k, p.v, f.out, p.options, {.lse = f.lse.view(), .weights = f.weights.view()});
  return f;
}

struct Backward {
  Tensor dq, dk, dv, dbias, dsinks;
};
// Gradients start as NaN: each element must be written.
Tensor unwritten(const Shape& shape) {
  Tensor x(DType::f64, shape);
  for (int64_t n = 0; n < x.size(); ++n) x.data<double>()[n] = kNaN;
  return x;
}
Backward run_backward(const Problem& p) {
  Backward g{unwritten(p.q.shape()), unwritten(p.k.shape()), unwritten(p.v.shape()), unwritten(p.bias.shape()),
             unwritten(p.sinks.shape())};
  AttentionGradients gradients{g.dq, g.dk, g.dv, {}, {}};
  if (p.options.bias) gradients.dbias = g.dbias.view();
  if (p.options.sinks) gradients.dsinks = g.dsinks.view();
  reference::attention_backward(p.dout, p.q, p.k, p.v, gradients, p.options);
  return g;
}

double at(const Tensor& x, int64_t b, int64_t h, int64_t i, int64_t d) {
  return load(x.view(), b, h, i, d);
}
double at_modulo(const Tensor& x, int64_t b, int64_t h, int64_t i, int64_t d) {
  const Shape& s = x.shape();
  return at(x, b % s[0], h % s[1], i % s[2], d % s[3]);
}
bool same_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && std::memcmp(a.view().data, b.view().data, static_cast<std::size_t>(a.bytes())) == 0;
}
bool all_zero(const Tensor& x) {
  for (int64_t n = 0; n < x.size(); ++n) {
    if (x.data<double>()[n] != 0) return false;
  }
  return true;
}

// ---- The textbook ----

// The distance of ALiBi, with the segments walked one by one.
double alibi_distance(const Problem& p, int64_t b, int64_t i, int64_t j) {
  int64_t q0 = 0, q1 = p.M, k0 = 0, k1 = p.N;
  for (const MaskRule& rule : p.options.mask.rules) {
    if (!std::holds_alternative<SegmentsRule>(rule)) continue;
    const auto& q = *std::get<SegmentsRule>(rule).queries;
    const auto& k = *std::get<SegmentsRule>(rule).keys;
    for (std::size_t s = 0; s + 1 < q.size(); ++s) {
      if (q[s] <= i && i < q[s + 1]) q0 = q[s], q1 = q[s + 1], k0 = k[s], k1 = k[s + 1];
    }
  }
  const Diagonal& diagonal = p.options.alibi_diagonal;
  int64_t offset = diagonal.align == Align::first_key ? 0 : (k1 - k0) - (q1 - q0);
  if (diagonal.offsets) offset = diagonal.offsets->at(static_cast<std::size_t>(b) % diagonal.offsets->size());
  return std::abs(static_cast<double>((i - q0 + offset) - (j - k0)));
}

double textbook_score(const Problem& p, int64_t b, int64_t h, int64_t i, int64_t j) {
  const AttentionOptions& o = p.options;
  double s = 0;
  for (int64_t d = 0; d < p.D; ++d) s += at(p.q, b, h, i, d) * at(p.k, b, h * p.Hk / p.H, j, d);
  s = o.scale ? s * *o.scale : s / std::sqrt(static_cast<double>(p.D));
  if (o.softcap > 0) s = o.softcap * std::tanh(s / o.softcap);
  if (o.rule) s = small::rule_value(s, small::rule_phase(b, h, i, j));
  if (o.bias) s += at_modulo(p.bias, b, h, i, j);
  if (o.alibi_slopes) s -= at_modulo(p.slopes, b, h, 0, 0) * alibi_distance(p, b, i, j);
  return s;
}

// exp(s) / sum exp(s), unshifted, with the mask as factors of 0 and 1.
Forward textbook(const Problem& p) {
  Forward f{Tensor(DType::f64, {p.B, p.H, p.M, p.E}), Tensor(DType::f64, {p.B, p.H, p.M, 1}),
            Tensor(DType::f64, {p.B, p.H, p.M, p.N})};
  const auto& dropout = p.options.dropout;
  for (int64_t b = 0; b < p.B; ++b) {
    for (int64_t h = 0; h < p.H; ++h) {
      for (int64_t i = 0; i < p.M; ++i) {
        std::vector<double> e;
        double sum = p.options.sinks ? std::exp(at(p.sinks, 0, h, 0, 0)) : 0;
        for (int64_t j = 0; j < p.N; ++j) {
          const bool seen = reference::visible(p.options.mask, b, h, i, j, p.M, p.N);
          e.push_back(seen ? std::exp(textbook_score(p, b, h, i, j)) : 0);
          sum += e.back();
        }
        store(f.lse.view(), b, h, i, 0, std::log(sum));
        for (int64_t j = 0; j < p.N; ++j) {
          const double weight = sum > 0 ? e[static_cast<std::size_t>(j)] / sum : 0;
          store(f.weights.view(), b, h, i, j, weight);
          const bool kept = dropout_bits(dropout.seed, b, h, i, j) >= std::round(dropout.probability * 4294967296.0);
          for (int64_t d = 0; d < p.E; ++d) {
            const double term = kept ? weight / (1 - dropout.probability) * at(p.v, b, h * p.Hk / p.H, j, d) : 0;
            store(f.out.view(), b, h, i, d, at(f.out, b, h, i, d) + term);
          }
        }
      }
    }
  }
  return f;
}

void expect_near(const Tensor& got, const Tensor& expected, const std::string& what) {
  ASSERT_EQ(got.shape(), expected.shape());
  for (int64_t n = 0; n < got.size(); ++n) {
    const double x = got.data<double>()[n], y = expected.data<double>()[n];
    if (x == y) continue;  // also where both are -inf
    ASSERT_NEAR(x, y, 1e-12 * (1 + std::abs(y))) << what << ", element " << n;
  }
}

TEST(Reference, ForwardIsTheTextbook) {
  for (std::uint64_t number = 0; number < kProblems; ++number) {
    const Problem p = random_problem(number);
    const std::string text = "problem " + std::to_string(number);
    const Forward got = run(p), expected = textbook(p);
    expect_near(got.weights, expected.weights, text + " weights");
    expect_near(got.lse, expected.lse, text + " lse");
    expect_near(got.out, expected.out, text + " out");
    if (HasFatalFailure()) return;
  }
}

// ---- Gradients ----

double loss(const Problem& p) {
  Tensor out(DType::f64, {p.B, p.H, p.M, p.E});
  reference::attention(p.q, p.k, p.v, out, p.options, {});
  double sum = 0;
  for (int64_t n = 0; n < out.size(); ++n) sum += out.data<double>()[n] * p.dout.data<double>()[n];
  return sum;
}

void expect_derivative(const Problem& p, Tensor& x, const Tensor& gradient, const std::string& what) {
  constexpr double kEps = 1e-6;
  ASSERT_EQ(gradient.shape(), x.shape());
  for (int64_t n = 0; n < x.size(); ++n) {
    double& element = x.data<double>()[n];
    const double old = element;
    element = old + kEps;
    const double high = loss(p);
    element = old - kEps;
    const double low = loss(p);
    element = old;
    const double numeric = (high - low) / (2 * kEps), analytic = gradient.data<double>()[n];
    ASSERT_NEAR(analytic, numeric, 1e-5 + 1e-3 * std::abs(numeric)) << what << ", element " << n;
  }
}

TEST(Reference, BackwardIsTheCentralDifference) {
  std::map<std::string, int> covered;
  for (std::uint64_t number = 0; number < kProblems; ++number) {
    Problem p = random_problem(number);
    for (const std::string& feature : p.features) ++covered[feature];
    const std::string text = "problem " + std::to_string(number);
    const Backward g = run_backward(p);
    expect_derivative(p, p.q, g.dq, text + " dq");
    expect_derivative(p, p.k, g.dk, text + " dk");
    expect_derivative(p, p.v, g.dv, text + " dv");
    if (p.options.bias) expect_derivative(p, p.bias, g.dbias, text + " dbias");
    if (p.options.sinks) expect_derivative(p, p.sinks, g.dsinks, text + " dsinks");
    if (HasFatalFailure()) return;
  }
  for (const char* feature :
       {"scale", "softcap", "rule", "bias", "alibi", "sinks", "dropout", "GQA", "E != D", "M < N", "M > N"}) {
    EXPECT_GE(covered[feature], 50) << feature;
  }
  for (int64_t kind = 0; kind < small::kMaskKinds; ++kind) EXPECT_GE(covered["mask " + std::to_string(kind)], 20);
}

// A plain problem: no mask and no options.
Problem plain_problem(int64_t M, int64_t N) {
  Draws draws(1000);
  Problem p;
  p.B = 2, p.H = 4, p.Hk = 2, p.M = M, p.N = N, p.D = 3, p.E = 2;
  p.q = draws.tensor({p.B, p.H, M, p.D});
  p.k = draws.tensor({p.B, p.Hk, N, p.D});
  p.v = draws.tensor({p.B, p.Hk, N, p.E});
  p.dout = draws.tensor({p.B, p.H, M, p.E});
  return p;
}

TEST(Reference, BiasGradientIsSummedOverEveryRepeatedDimension) {
  Problem p = plain_problem(3, 5);
  const Shape full = {p.B, p.H, p.M, p.N};
  for (unsigned repeated = 0; repeated < 16; ++repeated) {
    Shape shape = full;
    for (std::size_t d = 0; d < 4; ++d) {
      if ((repeated >> d & 1U) != 0) shape[d] = 1;
    }
    const Tensor small = Draws(repeated).tensor(shape);
    p.bias = Tensor(DType::f64, full);
    Tensor sum(DType::f64, shape);
    const auto for_each = [&](const auto& visit) {
      for (int64_t b = 0; b < p.B; ++b) {
        for (int64_t h = 0; h < p.H; ++h) {
          for (int64_t i = 0; i < p.M; ++i) {
            for (int64_t j = 0; j < p.N; ++j) visit(b, h, i, j);
          }
        }
      }
    };
    for_each([&](auto b, auto h, auto i, auto j) { store(p.bias.view(), b, h, i, j, at_modulo(small, b, h, i, j)); });
    p.options.bias = p.bias.view();
    const Forward written_out = run(p);
    const Backward whole = run_backward(p);
    for_each([&](auto b, auto h, auto i, auto j) {
      const double so_far = at_modulo(sum, b, h, i, j);
      store(sum.view(), b % shape[0], h % shape[1], i % shape[2], j % shape[3], so_far + at(whole.dbias, b, h, i, j));
    });
    p.bias = small.clone();
    p.options.bias = p.bias.view();
    EXPECT_TRUE(same_bits(run(p).out, written_out.out)) << repeated;
    expect_near(run_backward(p).dbias, sum, "dbias repeated in " + std::to_string(repeated));
  }
}

// ---- Edges ----

TEST(Reference, FullyMaskedRowsAreZero) {
  Problem p = plain_problem(5, 2);
  p.options.mask = causal();  // the last query meets the last key: queries 0, 1 and 2 see nothing
  for (const bool with_sinks : {false, true}) {
    if (with_sinks) {
      p.sinks = Draws(5).tensor({1, p.H, 1, 1});
      p.options.sinks = p.sinks.view();
    }
    const Forward f = run(p);
    const Backward g = run_backward(p);
    for (int64_t h = 0; h < p.H; ++h) {
      for (int64_t i = 0; i < p.M; ++i) {
        const bool masked = i < 3;
        EXPECT_EQ(at(f.out, 1, h, i, 0) == 0 && at(f.out, 1, h, i, 1) == 0, masked);
        EXPECT_EQ(at(f.weights, 1, h, i, 0) == 0, masked);
        EXPECT_EQ(at(g.dq, 1, h, i, 0) == 0 && at(g.dq, 1, h, i, 1) == 0, masked || (i == 3 && !with_sinks));
        if (masked) {
          EXPECT_EQ(at(f.lse, 1, h, i, 0), with_sinks ? at(p.sinks, 0, h, 0, 0) : -kInfinity);
        }
      }
    }
  }
  p.options.mask = padding({0});
  const Backward g = run_backward(p);
  EXPECT_TRUE(all_zero(g.dq) && all_zero(g.dk) && all_zero(g.dv) && all_zero(g.dsinks));
}

TEST(Reference, RowsOfMinusInfinityAreZero) {
  Problem p = plain_problem(2, 3);
  p.bias = Tensor(DType::f64, {1, 1, 1, 1});
  p.bias.data<double>()[0] = -kInfinity;
  p.options.bias = p.bias.view();
  const Forward f = run(p);
  EXPECT_TRUE(all_zero(f.out) && all_zero(f.weights));
  EXPECT_EQ(at(f.lse, 0, 0, 0, 0), -kInfinity);
  const Backward g = run_backward(p);
  EXPECT_TRUE(all_zero(g.dq) && all_zero(g.dk) && all_zero(g.dv) && all_zero(g.dbias));
}

TEST(Reference, NaNInMaskedKeysNeverLeaks) {
  Problem p = plain_problem(4, 6);
  p.options.mask = padding({4, 3}) & causal();
  p.options.softcap = 2;
  p.options.rule = small::wavy_rule();
  p.options.dropout = {0.2, 3};
  p.bias = Draws(6).tensor({1, 1, 4, 6});
  p.options.bias = p.bias.view();
  const Forward f = run(p);
  const Backward g = run_backward(p);
  for (int64_t b = 0; b < p.B; ++b) {
    for (int64_t h = 0; h < p.Hk; ++h) {
      for (int64_t j = b == 0 ? 4 : 3; j < p.N; ++j) {
        for (int64_t d = 0; d < p.D; ++d) store(p.k.view(), b, h, j, d, kNaN);
        for (int64_t d = 0; d < p.E; ++d) store(p.v.view(), b, h, j, d, d == 0 ? kNaN : kInfinity);
      }
    }
  }
  for (int64_t i = 0; i < p.M; ++i) store(p.bias.view(), 0, 0, i, 5, kNaN);
  const Forward f2 = run(p);
  const Backward g2 = run_backward(p);
  EXPECT_TRUE(same_bits(f.out, f2.out) && same_bits(f.lse, f2.lse) && same_bits(f.weights, f2.weights));
  EXPECT_TRUE(same_bits(g.dq, g2.dq) && same_bits(g.dk, g2.dk) && same_bits(g.dv, g2.dv));
  EXPECT_TRUE(same_bits(g.dbias, g2.dbias));
  EXPECT_EQ(at(g2.dk, 0, 0, 5, 0), 0);
  EXPECT_EQ(at(g2.dv, 0, 0, 5, 1), 0);
  EXPECT_EQ(at(g2.dbias, 0, 0, 0, 5), 0);
}

TEST(Reference, NaNStaysInItsRow) {
  Problem p = plain_problem(3, 4);
  const Forward f = run(p);
  store(p.q.view(), 0, 1, 2, 0, kNaN);
  store(p.q.view(), 1, 3, 0, 1, kInfinity);
  const Forward g = run(p);
  for (int64_t b = 0; b < p.B; ++b) {
    for (int64_t h = 0; h < p.H; ++h) {
      for (int64_t i = 0; i < p.M; ++i) {
        const bool touched = (b == 0 && h == 1 && i == 2) || (b == 1 && h == 3 && i == 0);
        if (touched) {
          EXPECT_TRUE(std::isnan(at(g.out, b, h, i, 0)) && std::isnan(at(g.weights, b, h, i, 0)));
        } else {
          EXPECT_EQ(at(g.out, b, h, i, 0), at(f.out, b, h, i, 0));
        }
      }
    }
  }
}

TEST(Reference, LargeScoresStayFinite) {
  for (const double size : {1e4, 6e4, -6e4, 1e8}) {
    Problem p = plain_problem(1, 3);
    p.bias = Tensor(DType::f64, {1, 1, 1, 3});
    p.bias.data<double>()[1] = size;
    p.options.bias = p.bias.view();
    const Forward f = run(p);
    EXPECT_NEAR(at(f.weights, 0, 0, 0, 1), size > 0 ? 1 : 0, 1e-15);
    EXPECT_NEAR(at(f.weights, 0, 0, 0, 0) + at(f.weights, 0, 0, 0, 1) + at(f.weights, 0, 0, 0, 2), 1, 1e-15);
    EXPECT_TRUE(std::isfinite(at(f.lse, 0, 0, 0, 0)));
  }
}

TEST(Reference, DropoutLeavesLseAndWeightsAlone) {
  Problem p = plain_problem(4, 6);
  const Forward f = run(p);
  p.options.dropout = {0.5, 17};
  const Forward g = run(p);
  EXPECT_TRUE(same_bits(f.lse, g.lse) && same_bits(f.weights, g.weights));
  EXPECT_FALSE(same_bits(f.out, g.out));
  p.options.dropout.seed = 18;
  EXPECT_FALSE(same_bits(run(p).out, g.out));
}

TEST(Reference, EmptyBatchQueriesOrKeys) {
  Problem p = plain_problem(3, 0);
  const Forward f = run(p);
  EXPECT_TRUE(all_zero(f.out));
  EXPECT_EQ(at(f.lse, 1, 3, 2, 0), -kInfinity);
  EXPECT_TRUE(all_zero(run_backward(p).dq));
  p = plain_problem(0, 3);
  EXPECT_EQ(run(p).out.size(), 0);
  const Backward g = run_backward(p);
  EXPECT_TRUE(all_zero(g.dk) && all_zero(g.dv));
  // No heads in a vast batch: done at once.
  const Tensor none(DType::f64, {int64_t{1} << 62, 0, 1, 1});
  Tensor out = none.clone();
  reference::attention(none, none, none, out, {}, {});
  reference::attention_backward(none, none, none, none, {out, out, out, {}, {}}, {});
}

TEST(Reference, RuleSeesRowsWithTheirCoordinates) {
  const Problem p = plain_problem(2, 5);
  std::vector<std::string> seen;
  AttentionOptions options;
  options.rule = ScoreRule([&](auto tile) {
    seen.push_back(std::to_string(tile.batch) + " " + std::to_string(tile.head) + " " + std::to_string(tile.first_row));
    EXPECT_EQ(tile.rows, 1);
    EXPECT_EQ(tile.cols, 5);
    EXPECT_EQ(tile.row_stride, 5);
    EXPECT_EQ(tile.first_col, 0);
  });
  Tensor out(DType::f64, {p.B, p.H, p.M, p.E});
  reference::attention(p.q, p.k, p.v, out, options, {});
  ASSERT_EQ(seen.size(), 16U);
  EXPECT_EQ(seen.front(), "0 0 0");
  EXPECT_EQ(seen[1], "0 0 1");
  EXPECT_EQ(seen.back(), "1 3 1");
  EXPECT_TRUE(same_bits(out, run(p).out));
}

// A copy in another dtype and layout; returns what it holds as contiguous doubles too.
struct Copy {
  Tensor memory;
  MutableView view;
  Tensor doubles;
};
Copy copy_as(DType dtype, const Tensor& x, const Strides& strides, int64_t first) {
  Copy c{Tensor(dtype, {1, 1, 1, 4 * x.size()}), {}, Tensor(DType::f64, x.shape())};
  c.view = {dtype, static_cast<char*>(c.memory.view().data) + first * size_of(dtype), x.shape(), strides};
  for (int64_t b = 0; b < x.shape()[0]; ++b) {
    for (int64_t h = 0; h < x.shape()[1]; ++h) {
      for (int64_t i = 0; i < x.shape()[2]; ++i) {
        for (int64_t d = 0; d < x.shape()[3]; ++d) {
          store(c.view, b, h, i, d, at(x, b, h, i, d));
          store(c.doubles.view(), b, h, i, d, load(c.view, b, h, i, d));
        }
      }
    }
  }
  return c;
}

TEST(Reference, AnyDtypesAndStrides) {
  Problem p = plain_problem(3, 5);
  p.options.mask = causal();
  const Copy q = copy_as(DType::bf16, p.q, length_major_strides(p.q.shape()), 0);
  const Copy k = copy_as(DType::f16, p.k, {30, 15, -3, 1}, 12);          // keys from last to first
  const Copy v = copy_as(DType::f32, p.v, {2, 1, 4, 20}, 0);             // dim outermost
  const Copy dout = copy_as(DType::f64, p.dout, {2 * 24, 12, 4, 2}, 1);  // gaps
  p.q = q.doubles.clone(), p.k = k.doubles.clone(), p.v = v.doubles.clone();
  const Forward f = run(p);
  const Backward g = run_backward(p);

  Tensor out(DType::f64, f.out.shape());
  reference::attention(q.view, k.view, v.view, out, p.options, {});
  EXPECT_TRUE(same_bits(out, f.out));
  const Copy dk = copy_as(DType::f32, g.dk, {30, 15, 3, 1}, 0);
  Tensor dq(DType::f64, p.q.shape()), dv(DType::f64, p.v.shape()), dk_f32(DType::f32, p.k.shape());
  reference::attention_backward(dout.view, q.view, k.view, v.view, {dq, dk_f32, dv, {}, {}}, p.options);
  EXPECT_TRUE(same_bits(dq, g.dq) && same_bits(dv, g.dv));
  for (int64_t n = 0; n < dk_f32.size(); ++n) EXPECT_EQ(dk_f32.data<float>()[n], dk.memory.data<float>()[n]);
}

}  // namespace
}  // namespace attend
