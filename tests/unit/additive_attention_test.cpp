// Tests of additive attention against its definition.
#include "attend/additive_attention.hpp"

#include <limits>

#include "reference/additive_attention.hpp"
#include "reference/attention.hpp"
#include "unit/error_of.hpp"
#include "unit/op_testing.hpp"

namespace attend::test::ops {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

struct AdditiveCase {
  std::int64_t B, H, Hk, M, N, D, E;
  AdditiveAttentionOptions options{};
  double spread = 1;  // of a and b

  Shape a() const { return {B, H, M, D}; }
  Shape b() const { return {B, Hk, N, D}; }
  Shape w() const { return {1, H, 1, D}; }
  Shape v() const { return {B, Hk, N, E}; }
  Shape out() const { return {B, H, M, E}; }
  Shape lse() const { return {B, H, M, 1}; }
};

std::vector<std::uint8_t> some_bits(std::int64_t count, std::uint64_t key) {
  std::vector<std::uint8_t> bits(static_cast<std::size_t>(count));
  for (std::size_t n = 0; n < bits.size(); ++n) bits[n] = uniform(key, n) < 0.6;
  return bits;
}

const std::vector<std::uint8_t> kDense = some_bits(2 * 2 * 70 * 130, 1);

std::vector<AdditiveCase> cases() {
  const auto bits = some_bits(2 * 3 * 5, 2);
  return {
      {1, 1, 1, 1, 1, 1, 1},
      {2, 3, 3, 5, 7, 6, 3},
      {1, 2, 1, 65, 63, 16, 5, {no_mask(), 0.5}},
      {1, 4, 2, 70, 130, 33, 17, {causal()}},
      {2, 2, 2, 70, 130, 8, 4, {dense(kDense.data(), {2, 2, 70, 130})}},
      {1, 2, 2, 70, 70, 20, 8, {causal(Align::first_key) & window(9, kUnlimited)}},
      {2, 2, 1, 67, 129, 24, 9, {padding({129, 3})}},
      {1, 2, 2, 70, 130, 8, 4, {blocks(30, 26, 2, 3, 5, bits)}},
      {1, 1, 1, 90, 90, 12, 4, {segments({0, 13, 80}) & causal()}},
      {2, 1, 1, 66, 20, 40, 3, {causal()}},  // the first queries see nothing
      {1, 1, 1, 300, 200, 48, 20, {prefix({40}), 2.0}},
      {1, 2, 2, 66, 70, 10, 4, {no_mask()}, 30},  // beyond the range of exponents
  };
}

struct Problem {
  Problem(const AdditiveCase& c, DType dtype, std::uint64_t key)
      : a(random_tensor(dtype, c.a(), key, c.spread)),
        b(random_tensor(dtype, c.b(), key + 1, c.spread)),
        w(random_tensor(dtype, c.w(), key + 2)),
        v(random_tensor(dtype, c.v(), key + 3)),
        dout(random_tensor(dtype, c.out(), key + 4)) {}
  Tensor a, b, w, v, dout;
};

struct Results {
  Results(const AdditiveCase& c, DType dtype)
      : out(dtype, c.out()),
        lse(dtype == DType::f64 ? DType::f64 : DType::f32, c.lse()),
        da(dtype, c.a()),
        db(dtype, c.b()),
        dw(lse.dtype(), c.w()),
        dv(dtype, c.v()) {}
  AdditiveAttentionGradients gradients() { return {da, db, dw, dv}; }
  Tensor out, lse, da, db, dw, dv;
};

Results run(const AdditiveCase& c, const Problem& p) {
  Results r(c, p.a.dtype());
  additive_attention(p.a, p.b, p.w, p.v, r.out, c.options, r.lse);
  additive_attention_backward(p.dout, p.a, p.b, p.w, p.v, r.out, r.lse, r.gradients(), c.options);
  return r;
}

Results expected_of(const AdditiveCase& c, const Problem& p) {
  Results r(c, DType::f64);
  reference::additive_attention(p.a, p.b, p.w, p.v, r.out, c.options, r.lse);
  reference::additive_attention_backward(p.dout, p.a, p.b, p.w, p.v, r.gradients(), c.options);
  return r;
}

void add_to(Tensor& x, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d, double value) {
  x.data<double>()[offset_of(x.view().strides, b, h, i, d)] += value;
}

// How far a result may lie from the reference, by its sums of magnitudes. A score is a sum of D products, each with an
// error of a few units; its weight has that error relative to itself; sums over N, M or E add theirs. dout . out is
// taken from the rounded output.
Results bounds_of(const AdditiveCase& c, const Problem& p, const Results& expected) {
  const DType dtype = p.a.dtype();
  constexpr double kUnit = 0x1p-24;
  Results size(c, DType::f64);
  for_each_element(c.lse(), [&](auto b, auto h, auto i, auto) {
    const std::int64_t hk = h / (c.H / c.Hk);
    double weights = 0;
    for (std::int64_t d = 0; d < c.D; ++d) weights += std::abs(load(p.w, 0, h, 0, d));
    const double score = std::abs(c.options.scale) * static_cast<double>(c.D + 6) * kUnit * weights;
    const double relative = 2 * score + static_cast<double>(c.N + 8) * kUnit;
    const double lse = load(expected.lse, b, h, i, 0);
    add_to(size.lse, b, h, i, 0, lse == -kInf ? 0 : score + 8 * kUnit + rounding(DType::f32, lse));
    if (lse == -kInf) return;
    std::vector<double> weight(static_cast<std::size_t>(c.N)), dp(weight.size());
    double delta = 0, rounded = 0;
    for (std::int64_t j = 0; j < c.N; ++j) {
      if (!reference::visible(c.options.mask, b, h, i, j, c.M, c.N)) continue;
      double s = 0;
      for (std::int64_t d = 0; d < c.D; ++d)
        s += load(p.w, 0, h, 0, d) * std::tanh(load(p.a, b, h, i, d) + load(p.b, b, hk, j, d));
      const double value = std::exp(c.options.scale * s - lse);
      weight[static_cast<std::size_t>(j)] = value;
      for (std::int64_t e = 0; e < c.E; ++e) {
        const double product = std::abs(load(p.dout, b, h, i, e) * load(p.v, b, hk, j, e));
        dp[static_cast<std::size_t>(j)] += product;
        add_to(size.out, b, h, i, e, relative * value * std::abs(load(p.v, b, hk, j, e)));
        add_to(size.dv, b, hk, j, e,
               (relative + static_cast<double>(c.M) * kUnit) * value * std::abs(load(p.dout, b, h, i, e)));
      }
      delta += value * dp[static_cast<std::size_t>(j)];
    }
    for (std::int64_t e = 0; e < c.E; ++e)
      rounded += std::abs(load(p.dout, b, h, i, e)) * rounding(dtype, load(expected.out, b, h, i, e));
    for (std::int64_t j = 0; j < c.N; ++j) {
      const auto at = static_cast<std::size_t>(j);
      const double error = (2 * relative + static_cast<double>(c.E + c.M + 8) * kUnit) * (dp[at] + delta) + rounded;
      const double ds = std::abs(c.options.scale) * weight[at] * error;
      for (std::int64_t d = 0; d < c.D; ++d) {
        add_to(size.da, b, h, i, d, ds * std::abs(load(p.w, 0, h, 0, d)));
        add_to(size.db, b, hk, j, d, ds * std::abs(load(p.w, 0, h, 0, d)));
        add_to(size.dw, 0, h, 0, d, 2 * ds);
      }
    }
  });
  return size;
}

void expect_close(const View& got, const Tensor& expected, const Tensor& size, const std::string& what) {
  if (got.shape[3] == 1 && what.find("lse") != std::string::npos) {
    for_each_element(got.shape, [&](auto b, auto h, auto i, auto d) {
      if (load(expected, b, h, i, d) == -kInf) {
        EXPECT_EQ(load(got, b, h, i, d), -kInf) << what;
      } else {
        EXPECT_LE(std::abs(load(got, b, h, i, d) - load(expected, b, h, i, d)), load(size, b, h, i, d)) << what;
      }
    });
    return;
  }
  expect_within(
      got, expected,
      [&](auto b, auto h, auto i, auto d) {
        return load(size, b, h, i, d) + 1.01 * rounding(got.dtype, load(expected, b, h, i, d));
      },
      what);
}

void expect_all_close(const Results& got, const Results& expected, const Results& size, const std::string& what) {
  expect_close(got.out, expected.out, size.out, what + " out");
  expect_close(got.lse, expected.lse, size.lse, what + " lse");
  expect_close(got.da, expected.da, size.da, what + " da");
  expect_close(got.db, expected.db, size.db, what + " db");
  expect_close(got.dw, expected.dw, size.dw, what + " dw");
  expect_close(got.dv, expected.dv, size.dv, what + " dv");
}

TEST(AdditiveAttention, MatchesTheReferencePerElement) {
  std::uint64_t key = 10;
  for (const AdditiveCase& c : cases()) {
    for (const DType dtype : kFloats) {
      const Problem p(c, dtype, key += 10);
      const Results expected = expected_of(c, p);
      expect_all_close(run(c, p), expected, bounds_of(c, p, expected),
                       std::string(name(dtype)) + ", case " + std::to_string(key));
    }
  }
}

TEST(AdditiveAttention, MatchesTheReferenceInEveryLayout) {
  const AdditiveCase c{2, 4, 2, 67, 70, 19, 5, {causal()}};
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Problem p(c, dtype, 1000);
    const Results expected = expected_of(c, p), size = bounds_of(c, p, expected);
    for (const MemoryLayout layout : kMemoryLayouts) {
      const Strided a(p.a, layout), b(p.b, layout), w(p.w, layout), v(p.v, layout), dout(p.dout, layout);
      Strided out(dtype, c.out(), layout), lse(DType::f32, c.lse(), layout), da(dtype, c.a(), layout),
          db(dtype, c.b(), layout), dw(dtype, c.w(), layout), dv(dtype, c.v(), layout);
      additive_attention(a.view, b.view, w.view, v.view, out.view, c.options, lse.view);
      additive_attention_backward(dout.view, a.view, b.view, w.view, v.view, out.view, lse.view,
                                  {da.view, db.view, dw.view, dv.view}, c.options);
      expect_close(out.view, expected.out, size.out, "out");
      expect_close(lse.view, expected.lse, size.lse, "lse");
      expect_close(da.view, expected.da, size.da, "da");
      expect_close(db.view, expected.db, size.db, "db");
      expect_close(dw.view, expected.dw, size.dw, "dw");
      expect_close(dv.view, expected.dv, size.dv, "dv");
      EXPECT_EQ(out.damaged() + lse.damaged() + da.damaged() + db.damaged() + dw.damaged() + dv.damaged(), 0);
    }
  }
}

TEST(AdditiveAttention, EveryFiniteInputIsWithinTheBounds) {
  // Sums that cancel, saturate or would overflow an exponential, alone and beside harmless rows.
  const AdditiveCase c{1, 1, 1, 70, 70, 7, 3};
  const std::vector<std::vector<float>> sets = {{20.5F, -21.5F, 0.0F, 1e-40F, -0.5F},
                                                {43.0F, -43.0F, 44.5F, -44.5F, 0.0F},
                                                {88.0F, -90.0F, 60.0F, -100.0F, 1.0F},
                                                {1e4F, -1e30F, 3e38F, -3e38F, 0.0F}};
  for (const std::vector<float>& extremes : sets) {
    Problem p(c, DType::f32, 2000);
    for (std::int64_t n = 0; n < 40; ++n) {
      p.a.data<float>()[n * 11 % p.a.size()] = extremes[static_cast<std::size_t>(n % 5)];
      p.b.data<float>()[n * 13 % p.b.size()] = -extremes[static_cast<std::size_t>((n * 3 + 1) % 5)];
    }
    for (std::int64_t d = 0; d < 7; ++d) {  // a row and a key that cancel to small sums
      p.a.data<float>()[30 * 7 + d] = extremes[0] + 0.25F * static_cast<float>(d);
      p.b.data<float>()[40 * 7 + d] = -extremes[0];
    }
    const Results expected = expected_of(c, p);
    expect_all_close(run(c, p), expected, bounds_of(c, p, expected), "extremes from " + std::to_string(extremes[0]));
  }
}

// Down to slopes of 6e-8, where 1 - tanh^2 in f32 has no digit left.
TEST(AdditiveAttention, ASaturatedTanhKeepsItsSlope) {
  constexpr std::int64_t kKeys = 20;
  for (const float last : {0.0F, 90.0F}) {  // within the range of exponents, and beyond it
    const AdditiveCase c{1, 1, 1, 1, kKeys, 1, 4};
    Problem p(c, DType::f32, 2100);
    p.a.data<float>()[0] = 0.25F;
    for (std::int64_t j = 0; j < kKeys; ++j) p.b.data<float>()[j] = static_cast<float>(j - 9);
    p.b.data<float>()[kKeys - 1] = last;
    const Results expected = expected_of(c, p), got = run(c, p);
    for (std::int64_t j = 0; j < kKeys - 1; ++j) {
      const double want = load(expected.db, 0, 0, j, 0);
      EXPECT_NEAR(load(got.db, 0, 0, j, 0), want, 1e-5 * std::abs(want)) << "key " << j << ", last " << last;
    }
  }
}

// Scores of +-3e6 in saturated rows: the LSE cannot tell how many keys share the weight.
TEST(AdditiveAttention, LargeScoresKeepTheirWeights) {
  const AdditiveCase c{1, 2, 1, 70, 130, 4, 5, {no_mask(), 1e6}};
  for (const DType dtype : kFloats) {
    Problem p(c, dtype, 40);
    for_each_element(c.a(), [&](auto b, auto h, auto i, auto d) { store(p.a, b, h, i, d, 15); });
    for_each_element(c.b(), [&](auto b, auto h, auto j, auto d) { store(p.b, b, h, j, d, j % 3 == 0 ? 0 : -30); });
    for_each_element(c.w(), [&](auto, auto h, auto, auto d) { store(p.w, 0, h, 0, d, d % 2 == 0 ? 1 : 0.5); });
    const Results got = run(c, p), expected = expected_of(c, p);
    for_each_element(c.v(), [&](auto b, auto h, auto j, auto e) {
      EXPECT_NEAR(load(got.dv, b, h, j, e), load(expected.dv, b, h, j, e), 8 * unit_roundoff(dtype) + 1e-5)
          << name(dtype) << " key " << j;
    });
    // A slope of 4e-13 is not 0; in da its parts cancel.
    const double part = 1e6 * 4 * std::exp(-30.0) * static_cast<double>(c.E);
    for (const auto& [x, exact] : {std::pair{&got.da, &expected.da}, {&got.db, &expected.db}})
      for_each_element(x->shape(), [&](auto b, auto h, auto i, auto d) {
        const double want = load(*exact, b, h, i, d);
        EXPECT_NEAR(load(*x, b, h, i, d), want, (8 * unit_roundoff(dtype) + 1e-5) * part + rounding(dtype, want))
            << name(dtype);
      });
    for_each_element(got.dw.shape(), [&](auto b, auto h, auto i, auto d) { EXPECT_EQ(load(got.dw, b, h, i, d), 0); });
  }
}

TEST(AdditiveAttention, BitsOfARowDoNotDependOnItsNeighbours) {
  const AdditiveCase c{1, 1, 1, 70, 100, 20, 8};
  Problem p(c, DType::f32, 2100);
  const Results before = run(c, p);
  for (std::int64_t d = 0; d < 20; ++d) p.a.data<float>()[33 * 20 + d] = 1e6F;
  const Results after = run(c, p);
  for_each_element(c.out(), [&](auto b, auto h, auto i, auto e) {
    if (i == 33) return;
    EXPECT_EQ(load(before.out, b, h, i, e), load(after.out, b, h, i, e)) << i;
  });
}

TEST(AdditiveAttention, HiddenKeysMayHoldAnything) {
  const AdditiveCase c{1, 2, 1, 70, 80, 9, 5, {padding({66})}};
  Problem p(c, DType::f32, 2200);
  const Results clean = run(c, p);
  for (std::int64_t j = 66; j < 80; ++j) {
    for (std::int64_t d = 0; d < 9; ++d) p.b.data<float>()[j * 9 + d] = d % 2 == 0 ? NAN : HUGE_VALF;
    for (std::int64_t e = 0; e < 5; ++e) p.v.data<float>()[j * 5 + e] = e % 2 == 0 ? NAN : HUGE_VALF;
  }
  const Results expected = expected_of(c, p), got = run(c, p);
  expect_all_close(got, expected, bounds_of(c, p, expected), "NaN behind the mask");
  EXPECT_EQ(max_abs(got.db), max_abs(clean.db));
  for (std::int64_t n = 66 * 5; n < 80 * 5; ++n) EXPECT_EQ(got.dv.data<float>()[n], 0.0F);
}

TEST(AdditiveAttention, NaNOfAVisibleKeyIsSeen) {
  const AdditiveCase c{1, 1, 1, 3, 4, 2, 2, {causal(Align::first_key)}};
  Problem p(c, DType::f32, 2300);
  p.b.data<float>()[2 * 2] = NAN;
  const Results got = run(c, p);
  for (std::int64_t n = 0; n < 6; ++n) EXPECT_EQ(std::isnan(got.out.data<float>()[n]), n >= 4) << n;
}

TEST(AdditiveAttention, GradientsByCentralDifferences) {
  for (const AdditiveCase& c : {AdditiveCase{1, 1, 1, 3, 4, 3, 2}, AdditiveCase{2, 4, 2, 4, 5, 3, 2, {causal(), 0.7}},
                                AdditiveCase{1, 2, 2, 4, 2, 2, 3, {causal()}}}) {
    Problem p(c, DType::f64, 3000);
    Results r = run(c, p);  // f64 runs the reference
    const auto loss = [&] {
      additive_attention(p.a, p.b, p.w, p.v, r.out, c.options);
      return dot(r.out, p.dout);
    };
    expect_gradient(r.da, p.a, loss, "a");
    expect_gradient(r.db, p.b, loss, "b");
    expect_gradient(r.dw, p.w, loss, "w");
    expect_gradient(r.dv, p.v, loss, "v");
  }
}

TEST(AdditiveAttention, SameBitsForAnyThreads) {
  const AdditiveCase c{2, 2, 1, 600, 150, 24, 8, {causal()}};
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Problem p(c, dtype, 4000);
    for (Tensor Results::* part :
         {&Results::out, &Results::lse, &Results::da, &Results::db, &Results::dw, &Results::dv})
      expect_same_for_any_threads([&] { return std::move(run(c, p).*part); }, name(dtype));
  }
}

TEST(AdditiveAttention, EmptyInputs) {
  for (const AdditiveCase& c :
       {AdditiveCase{0, 2, 1, 3, 4, 5, 6}, AdditiveCase{1, 2, 1, 0, 4, 5, 6}, AdditiveCase{1, 2, 1, 3, 0, 5, 6}}) {
    for (const DType dtype : {DType::f32, DType::f64}) {
      const Problem p(c, dtype, 5000);
      const Results r = run(c, p);
      EXPECT_EQ(max_abs(r.out) + max_abs(r.da) + max_abs(r.db) + max_abs(r.dw) + max_abs(r.dv), 0);
      for_each_element(r.lse.shape(),
                       [&](auto b, auto h, auto i, auto d) { EXPECT_EQ(load(r.lse, b, h, i, d), -kInf); });
    }
  }
}

TEST(AdditiveAttention, BadArgumentsSayWhatAndWhy) {
  const AdditiveCase c{1, 2, 1, 3, 4, 5, 6};
  const Problem p(c, DType::f32, 6000);
  Results r(c, DType::f32);
  const auto error = [&](const View& a, const View& b, const View& w, const View& v,
                         const AdditiveAttentionOptions& o) {
    return error_of([&] { additive_attention(a, b, w, v, r.out, o, r.lse); });
  };
  EXPECT_EQ(error(p.a, p.b, Tensor(DType::f32, {1, 1, 1, 5}), p.v, {}),
            "additive_attention: w shape is [1, 1, 1, 5], expected [1, 2, 1, 5]");
  EXPECT_EQ(error(p.a, Tensor(DType::f32, {1, 1, 4, 4}), p.w, p.v, {}),
            "additive_attention: b dim is 4, expected 5 (a dim)");
  EXPECT_EQ(error(p.a, Tensor(DType::f32, {1, 3, 4, 5}), p.w, Tensor(DType::f32, {1, 3, 4, 6}), {}),
            "additive_attention: a has 2 heads and b 3, expected a whole number of query heads for each KV head");
  EXPECT_EQ(error(p.a, p.b, p.w, Tensor(DType::f16, {1, 1, 4, 6}), {}),
            "additive_attention: v dtype is f16, expected f32");
  const auto empty = [](std::int64_t heads, std::int64_t length, std::int64_t dim) {
    return Tensor(DType::f32, {1, heads, length, dim});
  };
  EXPECT_EQ(error(empty(2, 3, 0), empty(1, 4, 0), empty(2, 1, 0), p.v, {}),
            "additive_attention: dim is 0 and value dim 6, expected at least 1");
  EXPECT_EQ(error(p.a, p.b, p.w, empty(1, 4, 0), {}),
            "additive_attention: dim is 5 and value dim 0, expected at least 1");
  EXPECT_EQ(error(empty(0, 3, 5), p.b, empty(0, 1, 5), p.v, {}),
            "additive_attention: a has 0 heads and b 1, expected a whole number of query heads for each KV head");
  EXPECT_EQ(error(p.a, p.b, p.w, p.v, {no_mask(), kInf}), "additive_attention: scale is inf, expected a finite number");
  EXPECT_EQ(error(p.a, p.b, p.w, p.v, {padding({5})}), "mask: padding lengths[0] is 5, expected 0 to 4 (keys)");
  EXPECT_NE(error_of([&] { additive_attention(p.a, p.b, p.w, p.v, r.da); }), "");
  EXPECT_EQ(
      error_of([&] { additive_attention_backward(p.dout, p.a, p.b, p.w, p.v, r.out, p.w, r.gradients(), c.options); }),
      "additive_attention_backward: lse shape is [1, 2, 1, 5], expected [1, 2, 3, 1]");
  EXPECT_EQ(error_of([&] {
              additive_attention_backward(p.dout, p.a, p.b, p.w, p.v, r.out, r.lse, {r.da, r.db, r.dw, r.db},
                                          c.options);
            }),
            "additive_attention_backward: dv shape is [1, 1, 4, 5], expected [1, 1, 4, 6]");
}

TEST(AdditiveInner, GivesTheBitsOfTheFunctions) {
  const AdditiveCase c{2, 4, 2, 9, 11, 6, 5, {causal()}};
  for (const DType dtype : {DType::f32, DType::f64}) {
    Problem p(c, dtype, 8000);
    const auto inner = additive_attention_inner({.dtype = dtype, .heads = c.H, .head_dim = c.D, .options = c.options});
    ASSERT_EQ(inner->parameters().size(), 1U);
    EXPECT_EQ(inner->parameters()[0].name, "w");
    EXPECT_NEAR(load(inner->parameters()[0].value, 0, 3, 0, 5), 1 / std::sqrt(6.0), 1e-7);
    copy(p.w, inner->parameters()[0].value);
    const Results expected = run(c, p);
    Results got(c, dtype);
    std::vector<Tensor> saved;
    inner->forward(p.a, p.b, p.v, got.out, &saved);
    const auto gradients = inner->backward(p.dout, p.a, p.b, p.v, got.out, saved, got.da, got.db, got.dv);
    EXPECT_TRUE(same_bits(got.out, expected.out));
    EXPECT_TRUE(same_bits(got.da, expected.da));
    EXPECT_TRUE(same_bits(got.db, expected.db));
    EXPECT_TRUE(same_bits(got.dv, expected.dv));
    ASSERT_EQ(gradients.size(), 1U);
    EXPECT_TRUE(same_bits(gradients[0], expected.dw));
    Tensor alone(dtype, c.out());
    inner->forward(p.a, p.b, p.v, alone, nullptr);
    EXPECT_TRUE(same_bits(alone, expected.out));
  }
  EXPECT_EQ(error_of([] { additive_attention_inner({.heads = 2}); }),
            "additive_attention_inner: heads is 2 and head_dim 0, expected at least 1");
}

}  // namespace
}  // namespace attend::test::ops
