// Tests of adaptive span: against its definition in double, gradients of the span too, and that compute stops there.
#include "attend/adaptive_span.hpp"

#include <algorithm>
#include <mutex>

#include "attend/attention.hpp"
#include "reference/adaptive_span.hpp"
#include "unit/error_of.hpp"
#include "unit/op_testing.hpp"
#include "variants/adaptive_span.hpp"

namespace attend::test::ops {
namespace {

struct Case {
  std::int64_t B, H, Hk, M, N, D, V;
  double ramp, max_span;
  bool symmetric;
  std::vector<double> spans;
};
const std::vector<Case> kCases = {
    {1, 1, 1, 1, 1, 1, 1, 1.0, 10, false, {0.5}},
    {2, 4, 2, 37, 53, 8, 5, 7.5, 30, false, {0, 3.25, 17.5, 30}},
    {1, 3, 3, 150, 150, 64, 64, 32, 1024, false, {11.3, 64, 1000}},
    {2, 2, 1, 130, 201, 16, 24, 9, 80, true, {20.7, 5.1}},
    {1, 6, 2, 70, 70, 32, 16, 0.5, 40, true, {0, 1, 2.75, 33, -4, 44}},
    {3, 2, 2, 20, 5, 4, 3, 12, 9, false, {2.2, 8}},
};

struct Problem {
  Problem(const Case& c, DType dtype)
      : q(random_tensor(dtype, {c.B, c.H, c.M, c.D}, 1)),
        k(random_tensor(dtype, {c.B, c.Hk, c.N, c.D}, 2)),
        v(random_tensor(dtype, {c.B, c.Hk, c.N, c.V}, 3)),
        dout(random_tensor(dtype, {c.B, c.H, c.M, c.V}, 4)),
        span(dtype == DType::f64 ? DType::f64 : DType::f32, {1, c.H, 1, 1}) {
    for (std::int64_t h = 0; h < c.H; ++h) store(span, 0, h, 0, 0, c.spans[static_cast<std::size_t>(h)]);
    options.ramp = c.ramp, options.max_span = c.max_span, options.symmetric = c.symmetric;
  }
  Shape lse_shape() const { return {q.shape()[0], q.shape()[1], q.shape()[2], 1}; }

  Tensor q, k, v, dout, span;
  AdaptiveSpanOptions options;
};

struct Gradients {
  Gradients(const Problem& p, DType dtype)
      : dq(dtype, p.q.shape()),
        dk(dtype, p.k.shape()),
        dv(dtype, p.v.shape()),
        dspan(dtype == DType::f64 ? DType::f64 : DType::f32, p.span.shape()) {}
  AdaptiveSpanGradients views() { return {dq, dk, dv, dspan}; }
  std::vector<std::pair<const char*, const Tensor*>> all() const {
    return {{"dq", &dq}, {"dk", &dk}, {"dv", &dv}, {"dspan", &dspan}};
  }
  Tensor dq, dk, dv, dspan;
};

// One rounding to the dtype, and f32 sums as large as the largest element.
auto bound_of(DType dtype, const Tensor& expected, double steps, double half_steps) {
  const double size = max_abs(expected);
  // Backward reads an output that was rounded, which shows even where the gradient itself is zero.
  const double half = dtype == DType::f32 ? 0 : half_steps * unit_roundoff(dtype) * std::max(size, 0.5);
  return [&expected, dtype, all = steps * unit_roundoff(DType::f32) * size + half](auto b, auto h, auto i, auto d) {
    return 1.01 * rounding(dtype, load(expected, b, h, i, d)) + all;
  };
}

void expect_matches_reference(const Problem& p, DType dtype, const std::string& what) {
  Tensor out(dtype, p.dout.shape()), lse(DType::f32, p.lse_shape());
  adaptive_span(p.q, p.k, p.v, p.span, out, p.options, lse.view());
  Tensor expected(DType::f64, out.shape()), expected_lse(DType::f64, lse.shape());
  reference::adaptive_span(p.q, p.k, p.v, p.span, expected, p.options, expected_lse.view());
  expect_within(out, expected, bound_of(dtype, expected, 16, 2), what + " out");
  for_each_element(lse.shape(), [&](auto b, auto h, auto i, auto d) {
    const double got = load(lse, b, h, i, d), wanted = load(expected_lse, b, h, i, d);
    EXPECT_TRUE(got == wanted ||
                std::abs(got - wanted) <= 32 * unit_roundoff(dtype == DType::bf16 ? dtype : DType::f32))
        << what << " lse: " << got << ", expected " << wanted;
  });

  Gradients got(p, dtype), wanted(p, DType::f64);
  adaptive_span_backward(p.dout, p.q, p.k, p.v, p.span, out, lse, got.views(), p.options);
  reference::adaptive_span_backward(p.dout, p.q, p.k, p.v, p.span, wanted.views(), p.options);
  for (std::size_t n = 0; n < got.all().size(); ++n) {
    const Tensor& expect = *wanted.all()[n].second;
    expect_within(*got.all()[n].second, expect, bound_of(dtype, expect, 64, 6), what + " " + got.all()[n].first);
  }
}

TEST(AdaptiveSpan, MatchesTheReferencePerElement) {
  for (const DType dtype : kFloats)
    for (std::size_t n = 0; n < kCases.size(); ++n)
      expect_matches_reference(Problem(kCases[n], dtype), dtype, std::string(name(dtype)) + " " + std::to_string(n));
}

TEST(AdaptiveSpan, PaddingAndPositions) {
  for (const std::size_t n : {std::size_t{1}, std::size_t{3}}) {
    Problem p(kCases[n], DType::f32);
    p.options.mask = padding({40, 11}) & left_padding({2});
    expect_matches_reference(p, DType::f32, "padding");
    p.options.diagonal = Align::first_key;
    expect_matches_reference(p, DType::f32, "first key");
    p.options.diagonal = Diagonal::at({5, -20});
    expect_matches_reference(p, DType::f32, "given positions");
  }
}

// A head that never gets to its ramp is a plain window; one with a long span sees all that is causal.
TEST(AdaptiveSpan, IsAttentionWhereTheMaskIsOne) {
  Problem p(kCases[2], DType::f32);
  for (std::int64_t h = 0; h < 3; ++h) store(p.span, 0, h, 0, 0, 500);
  Tensor out(DType::f32, p.dout.shape());
  adaptive_span(p.q, p.k, p.v, p.span, out, p.options);
  AttentionOptions options;
  options.mask = causal();
  const AttentionResult expected = attention(p.q, p.k, p.v, options);
  EXPECT_LE(max_abs(out), 10);
  expect_within(out, expected.out, [](auto, auto, auto, auto) { return 1e-6; }, "causal");
}

TEST(AdaptiveSpan, NothingBeyondTheSpanIsComputed) {
  constexpr std::int64_t kLength = 2000;
  const Tensor q = random_tensor(DType::f32, {1, 1, kLength, 16}, 1), k = random_tensor(DType::f32, q.shape(), 2);
  const Tensor v = random_tensor(DType::f32, q.shape(), 3), dout = random_tensor(DType::f32, q.shape(), 4);
  AdaptiveSpanOptions options;
  options.ramp = 16;
  for (const double z : {0.0, 50.0, 300.5}) {
    const HeadSpan head(z, options, 1, kLength, kLength);
    EXPECT_EQ(head.reach(), static_cast<std::int64_t>(std::ceil(z + 16)) - 1);
    std::vector<double> slots(static_cast<std::size_t>(head.slots()));
    AttentionOptions plain = head.attention_options(slots.data());
    std::mutex mutex;
    std::int64_t forward = 0, backward = 0, farthest = 0;
    const ScoreRule inner = plain.rule;
    plain.rule = ScoreRule();
    plain.rule.forward_f32 = [&](ScoreTile<float> tile) {
      const std::lock_guard lock(mutex);
      forward += tile.rows * tile.cols;
      farthest = std::max(farthest, tile.first_row + tile.rows - 1 - tile.first_col);
      inner.forward_f32(tile);
    };
    plain.rule.forward_f64 = inner.forward_f64;
    plain.rule.backward_f32 = [&](ScoreTile<const float> scores, ScoreTile<float> grad) {
      const std::lock_guard lock(mutex);
      backward += grad.rows * grad.cols;
      inner.backward_f32(scores, grad);
    };
    const AttentionResult result = attention(q, k, v, plain, {.lse = true});
    // What a row needs, rounded up to whole blocks of rows and keys.
    const std::int64_t most = kLength * (head.reach() + 1 + 2 * 64);
    EXPECT_LE(forward, most);
    EXPECT_GE(forward, kLength * (head.reach() + 1) - (head.reach() + 1) * (head.reach() + 1));
    EXPECT_LE(farthest, head.reach() + 2 * 64);
    attention_backward(dout, q, k, v, result.out, result.lse, plain);
    EXPECT_LE(backward, most);
    EXPECT_GT(backward, 0);
  }
}

TEST(AdaptiveSpan, AnyLayout) {
  for (const DType dtype : kFloats) {
    const Problem p(kCases[1], dtype);
    Tensor out(dtype, p.dout.shape()), lse(DType::f32, p.lse_shape());
    adaptive_span(p.q, p.k, p.v, p.span, out, p.options, lse.view());
    Gradients wanted(p, dtype);
    adaptive_span_backward(p.dout, p.q, p.k, p.v, p.span, out, lse, wanted.views(), p.options);
    for (const MemoryLayout layout : {MemoryLayout::length_major, MemoryLayout::odd}) {
      const Strided q(p.q, layout), k(p.k, layout), v(p.v, layout), span(p.span, layout), dout(p.dout, layout);
      Strided to(dtype, out.shape(), layout), dq(dtype, p.q.shape(), layout), dk(dtype, p.k.shape(), layout);
      Strided dv(dtype, p.v.shape(), layout), dspan(DType::f32, p.span.shape(), layout);
      adaptive_span(q.view, k.view, v.view, span.view, to.view, p.options);
      adaptive_span_backward(dout.view, q.view, k.view, v.view, span.view, to.view, lse,
                             {dq.view, dk.view, dv.view, dspan.view}, p.options);
      const auto exact = [](auto, auto, auto, auto) { return 0.0; };
      expect_within(to.view, out, exact, "out");
      expect_within(dq.view, wanted.dq, exact, "dq");
      expect_within(dk.view, wanted.dk, exact, "dk");
      expect_within(dv.view, wanted.dv, exact, "dv");
      expect_within(dspan.view, wanted.dspan, exact, "dspan");
      EXPECT_EQ(to.damaged() + dq.damaged() + dk.damaged() + dv.damaged() + dspan.damaged(), 0);
    }
  }
}

TEST(AdaptiveSpan, GradientsByCentralDifferences) {
  for (const bool symmetric : {false, true}) {
    Problem p({2, 4, 2, 7, 9, 3, 2, 3.5, 6, symmetric, {0.3, 1.7, 4.2, 5.6}}, DType::f64);
    p.options.mask = padding({9, 6});
    p.options.scale = 0.7;
    Tensor out(DType::f64, p.dout.shape()), lse(DType::f64, p.lse_shape());
    const auto loss = [&] {
      adaptive_span(p.q, p.k, p.v, p.span, out, p.options, lse.view());
      return dot(out, p.dout);
    };
    loss();
    Gradients g(p, DType::f64);
    adaptive_span_backward(p.dout, p.q, p.k, p.v, p.span, out, lse, g.views(), p.options);
    expect_gradient(g.dq, p.q, loss, "q");
    expect_gradient(g.dk, p.k, loss, "k");
    expect_gradient(g.dv, p.v, loss, "v");
    expect_gradient(g.dspan, p.span, loss, "span");
    EXPECT_GT(max_abs(g.dspan), 1e-3);
  }
}

// Beyond a bound, only a gradient whose step downhill leads back inside is passed on.
TEST(AdaptiveSpan, SpansOutsideAreHeld) {
  const Case c{1, 4, 4, 60, 60, 8, 8, 10, 20, false, {-3, -3, 25, 25}};
  Problem p(c, DType::f32);
  Tensor clamped(DType::f32, p.span.shape());
  for (std::int64_t h = 0; h < 4; ++h) store(clamped, 0, h, 0, 0, h < 2 ? 0 : 20);
  // Heads 0 and 1 are pulled opposite ways, and 2 and 3.
  constexpr std::int64_t kHead = std::int64_t{60} * 8;
  for (const std::int64_t h : {1, 3})
    for (std::int64_t n = h * kHead; n < (h + 1) * kHead; ++n) {
      for (Tensor* x : {&p.q, &p.k, &p.v}) x->data<float>()[n] = x->data<float>()[n - kHead];
      p.dout.data<float>()[n] = -p.dout.data<float>()[n - kHead];
    }
  Tensor out(DType::f32, p.dout.shape()), expected(DType::f32, out.shape()), lse(DType::f32, p.lse_shape());
  adaptive_span(p.q, p.k, p.v, p.span, out, p.options, lse.view());
  adaptive_span(p.q, p.k, p.v, clamped, expected, p.options);
  EXPECT_TRUE(same_bits(out, expected));
  Gradients outside(p, DType::f32), bound(p, DType::f32);
  adaptive_span_backward(p.dout, p.q, p.k, p.v, p.span, out, lse, outside.views(), p.options);
  adaptive_span_backward(p.dout, p.q, p.k, p.v, clamped, out, lse, bound.views(), p.options);
  for (std::int64_t h = 0; h < 4; ++h) {
    const double g = load(bound.dspan, 0, h, 0, 0);
    EXPECT_NE(g, 0);
    EXPECT_EQ(load(outside.dspan, 0, h, 0, 0), (h < 2) == (g < 0) ? g : 0) << h;
  }
}

TEST(AdaptiveSpan, Penalty) {
  Tensor span(DType::f32, {1, 4, 1, 1}), dspan(DType::f32, span.shape());
  for (std::int64_t h = 0; h < 4; ++h)
    store(span, 0, h, 0, 0, std::vector{-2.0, 3.0, 7.5, 50.0}[static_cast<std::size_t>(h)]);
  AdaptiveSpanOptions options;
  options.max_span = 40;
  EXPECT_NEAR(adaptive_span_penalty(span, 0.5, options, dspan.view()), 0.5 / 4 * (0 + 3 + 7.5 + 40), 1e-12);
  EXPECT_EQ(load(dspan, 0, 0, 0, 0), 0);  // a step downhill would lead further out
  for (std::int64_t h = 1; h < 4; ++h) EXPECT_EQ(load(dspan, 0, h, 0, 0), 0.125);
  EXPECT_NE(error_of([&] { adaptive_span_penalty(span, HUGE_VAL); }).find("loss_weight is inf"), std::string::npos);
  EXPECT_NE(error_of([&] { adaptive_span_penalty(span, 1, {}, span.view()); }).find("dspan"), std::string::npos);
}

TEST(AdaptiveSpan, NothingToDo) {
  for (const Case& c : {Case{0, 2, 1, 4, 6, 3, 2, 2, 6, false, {1, 2}}, Case{2, 2, 1, 0, 6, 3, 2, 2, 6, false, {1, 2}},
                        Case{2, 2, 2, 4, 0, 3, 2, 2, 6, true, {1, 2}}}) {
    const Problem p(c, DType::f32);
    Tensor out = random_tensor(DType::f32, p.dout.shape(), 9), lse(DType::f32, p.lse_shape());
    adaptive_span(p.q, p.k, p.v, p.span, out, p.options, lse.view());
    EXPECT_EQ(max_abs(out), 0);
    Gradients g(p, DType::f32);
    store(g.dspan, 0, 1, 0, 0, 5);
    adaptive_span_backward(p.dout, p.q, p.k, p.v, p.span, out, lse, g.views(), p.options);
    for (const auto& [what, gradient] : g.all()) EXPECT_EQ(max_abs(*gradient), 0) << what;
  }
}

TEST(AdaptiveSpan, BitsDoNotDependOnTheThreads) {
  for (const std::int64_t kv_heads : {1, 2}) {
    const Problem p({2, 2, kv_heads, 700, 700, 16, 16, 100, 300, false, {55.5, 170}}, DType::f32);
    Tensor out(DType::f32, p.dout.shape()), lse(DType::f32, p.lse_shape());
    adaptive_span(p.q, p.k, p.v, p.span, out, p.options, lse.view());
    expect_same_for_any_threads(
        [&] {
          Tensor again(DType::f32, out.shape());
          adaptive_span(p.q, p.k, p.v, p.span, again, p.options);
          return again;
        },
        "out");
    for (std::size_t n = 0; n < 4; ++n)
      expect_same_for_any_threads(
          [&] {
            Gradients g(p, DType::f32);
            adaptive_span_backward(p.dout, p.q, p.k, p.v, p.span, out, lse, g.views(), p.options);
            return g.all()[n].second->clone();
          },
          "gradient " + std::to_string(n));
  }
}

TEST(AdaptiveSpan, BadArgumentsAreTold) {
  Problem p(kCases[1], DType::f32);
  Tensor out(DType::f32, p.dout.shape()), lse(DType::f32, p.lse_shape());
  const auto said = [&](auto change) {
    AdaptiveSpanOptions options = p.options;
    change(options);
    return error_of([&] { adaptive_span(p.q, p.k, p.v, p.span, out, options); });
  };
  EXPECT_NE(said([](auto& o) { o.ramp = 0; }).find("adaptive_span: ramp is 0"), std::string::npos);
  EXPECT_NE(said([](auto& o) { o.ramp = std::nan(""); }).find("ramp is"), std::string::npos);
  EXPECT_NE(said([](auto& o) { o.ramp = 1e9; }).find("up to 2^20"), std::string::npos);
  EXPECT_NE(said([](auto& o) { o.max_span = -1; }).find("max_span is -1"), std::string::npos);
  EXPECT_NE(said([](auto& o) { o.mask = window(3, kUnlimited); }).find("the mask is a window, expected padding alone"),
            std::string::npos);
  EXPECT_NE(said([](auto& o) { o.diagonal = Diagonal::at({1, 2, 3}); }).find("3 values"), std::string::npos);
  EXPECT_EQ(said([](auto& o) { o.max_span = 1e18; }), "");
  const Tensor short_span(DType::f32, {1, 3, 1, 1});
  EXPECT_NE(error_of([&] { adaptive_span(p.q, p.k, p.v, short_span, out); }).find("span shape"), std::string::npos);
  store(p.span, 0, 2, 0, 0, std::nan(""));
  EXPECT_NE(said([](auto&) {}).find("span of head 2 is nan"), std::string::npos);
  store(p.span, 0, 2, 0, 0, 1);
  Gradients g(p, DType::f32);
  AdaptiveSpanGradients gradients = g.views();
  gradients.dspan = p.span;
  const auto backward = [&] {
    return error_of([&] { adaptive_span_backward(p.dout, p.q, p.k, p.v, p.span, out, lse, gradients); });
  };
  EXPECT_NE(backward().find("dspan"), std::string::npos);
  gradients = g.views();
  gradients.dk = g.dq;
  EXPECT_NE(backward().find("dk"), std::string::npos);
}

TEST(AdaptiveSpanInner, IsTheFunctionWithItsParameter) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    AdaptiveSpanConfig config{.heads = 4, .initial_span = 12.5};
    config.options.ramp = 6;
    const auto inner = adaptive_span_inner(config);
    const auto parameters = inner->parameters();
    ASSERT_EQ(parameters.size(), 1U);
    EXPECT_EQ(parameters[0].name, "span");
    EXPECT_EQ(load(parameters[0].value, 0, 3, 0, 0), 12.5);
    store(parameters[0].value, 0, 1, 0, 0, 3.5);
    Problem p(kCases[1], dtype);
    p.options = config.options;
    const DType wide = dtype == DType::f64 ? DType::f64 : DType::f32;
    Tensor out(dtype, p.dout.shape()), expected(dtype, out.shape()), lse(wide, p.lse_shape());
    std::vector<Tensor> saved;
    inner->forward(p.q, p.k, p.v, out, &saved);
    adaptive_span(p.q, p.k, p.v, parameters[0].value, expected, p.options, lse.view());
    EXPECT_TRUE(same_bits(out, expected));
    Gradients wanted(p, dtype), got(p, dtype);
    adaptive_span_backward(p.dout, p.q, p.k, p.v, parameters[0].value, out, lse, wanted.views(), p.options);
    const std::vector<Tensor> learned = inner->backward(p.dout, p.q, p.k, p.v, out, saved, got.dq, got.dk, got.dv);
    EXPECT_TRUE(same_bits(got.dq, wanted.dq) && same_bits(got.dk, wanted.dk) && same_bits(got.dv, wanted.dv));
    ASSERT_EQ(learned.size(), 1U);
    EXPECT_TRUE(same_bits(learned[0], wanted.dspan));
  }
  EXPECT_NE(error_of([] { adaptive_span_inner({.heads = 0}); }).find("heads is 0"), std::string::npos);
  EXPECT_NE(error_of([] { adaptive_span_inner({.heads = 1, .initial_span = -1}); }).find("initial_span is -1"),
            std::string::npos);
  AdaptiveSpanConfig masked{.heads = 1};
  masked.options.mask = padding({3});
  EXPECT_NE(error_of([&] { adaptive_span_inner(masked); }).find("mask"), std::string::npos);
}

}  // namespace
}  // namespace attend::test::ops
