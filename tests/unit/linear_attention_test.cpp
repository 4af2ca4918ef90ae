// Tests of linear attention and the gated delta rule: against the recurrence in double, in pieces, step by step.
#include "attend/linear_attention.hpp"

#include <limits>
#include <stdexcept>

#include "unit/error_of.hpp"
#include "unit/linear_attention_cases.hpp"

namespace attend::test::ops {
namespace {

constexpr double kF32 = 0x1p-24;
constexpr double kInf = std::numeric_limits<double>::infinity();

// Every element against the size of the terms it is summed from: those of the same problem without signs. The delta
// rule and gradients, which have no such thing, against the largest element of their row's head.
void expect_forward(const LinearCase& c, DType dtype, double roundings) {
  const LinearInputs in(c, dtype);
  const LinearResult got = forward(in), expected = forward(in, true);
  LinearInputs unsigned_in(c, dtype);
  const auto absolute = [](Tensor& x) {
    for_each_element(x.shape(),
                     [&](auto b, auto h, auto i, auto d) { store(x, b, h, i, d, std::abs(load(x, b, h, i, d))); });
  };
  absolute(unsigned_in.v);
  if (!unsigned_in.initial.empty()) absolute(unsigned_in.initial);
  if (c.map.kind == FeatureMap::Kind::identity) absolute(unsigned_in.q), absolute(unsigned_in.k);
  const LinearResult terms = forward(unsigned_in, true);
  const double largest = max_abs(expected.out), largest_state = c.causal ? max_abs(expected.final_state) : 0;
  expect_within(
      got.out, expected.out,
      [&](auto b, auto h, auto i, auto e) {
        const double size = c.delta ? largest : load(terms.out, b, h, i, e);
        return 1.01 * rounding(dtype, load(expected.out, b, h, i, e)) + roundings * kF32 * std::abs(size);
      },
      c.name + " out " + name(dtype));
  if (!c.causal) return;
  expect_within(
      got.final_state, expected.final_state,
      [&](auto b, auto h, auto f, auto e) {
        return roundings * kF32 * (c.delta ? largest_state : load(terms.final_state, b, h, f, e));
      },
      c.name + " final state " + name(dtype));
}

void expect_backward(const LinearCase& c, DType dtype, double roundings) {
  const LinearInputs in(c, dtype);
  LinearBackwardResult got = backward(in), expected = backward(in, true);
  const auto compare = [&](const Tensor& a, const Tensor& b, const char* what) {
    if (b.empty()) return;
    const double largest = std::max(2.0, max_abs(b));  // what is summed may cancel
    expect_within(
        a, b,
        [&](auto n, auto h, auto i, auto d) {
          return 1.01 * rounding(a.dtype(), load(b, n, h, i, d)) + roundings * kF32 * largest;
        },
        c.name + " " + what + " " + name(dtype));
  };
  compare(got.dq, expected.dq, "dq");
  compare(got.dk, expected.dk, "dk");
  compare(got.dv, expected.dv, "dv");
  compare(got.dlog_decay, expected.dlog_decay, "dlog_decay");
  compare(got.dbeta, expected.dbeta, "dbeta");
  compare(got.dinitial, expected.dinitial, "dinitial_state");
}

TEST(LinearAttention, MatchesTheRecurrencePerElement) {
  for (const LinearCase& c : linear_cases())
    for (const DType dtype : kFloats)
      if (dtype != DType::f16 || c.size < 1000) expect_forward(c, dtype, 40);  // f16 would overflow
}

TEST(LinearAttention, GradientsMatchTheRecurrence) {
  for (const LinearCase& c : linear_cases())
    for (const DType dtype : kFloats)
      if (dtype != DType::f16 || c.size < 1000) expect_backward(c, dtype, 60);
}

TEST(LinearAttention, GradientsByCentralDifferences) {
  const FeatureMap identity = FeatureMap::Kind::identity;
  const std::vector<LinearCase> cases = {
      {.name = "causal", .N = 5, .D = 3, .E = 2, .decay = Decay::per_token, .states = true, .scale = 0.7},
      {.name = "retention",
       .H = 4,
       .N = 4,
       .D = 2,
       .E = 3,
       .map = identity,
       .normalise = false,
       .decay = Decay::per_head,
       .decay_heads = 4},
      {.name = "gated delta",
       .H = 4,
       .N = 5,
       .D = 3,
       .E = 2,
       .map = identity,
       .normalise = false,
       .decay = Decay::per_token,
       .delta = true,
       .states = true},
      {.name = "delta, padding",
       .B = 2,
       .N = 4,
       .D = 3,
       .E = 2,
       .map = identity,
       .normalise = false,
       .decay = Decay::per_token,
       .delta = true,
       .states = true,
       .lengths = {4, 2}},
      {.name = "full", .M = 3, .N = 5, .D = 3, .E = 2, .causal = false, .lengths = {4}},
      {.name = "given", .M = 3, .N = 5, .D = 3, .E = 2, .map = two_sided_map(3), .causal = false},
  };
  for (const LinearCase& c : cases) {
    LinearInputs in(c, DType::f64);
    LinearBackwardResult g = backward(in);
    const auto loss = [&] {
      const LinearResult r = forward(in);
      return dot(r.out, in.dout) + (in.dfinal.empty() ? 0 : dot(r.final_state, in.dfinal));
    };
    expect_gradient(g.dq, in.q, loss, c.name + " q");
    expect_gradient(g.dk, in.k, loss, c.name + " k");
    expect_gradient(g.dv, in.v, loss, c.name + " v");
    if (!in.log_decay.empty()) expect_gradient(g.dlog_decay, in.log_decay, loss, c.name + " log_decay");
    if (!in.beta.empty()) expect_gradient(g.dbeta, in.beta, loss, c.name + " beta");
    if (!in.initial.empty()) expect_gradient(g.dinitial, in.initial, loss, c.name + " initial_state");
  }
}

TEST(LinearAttention, TheDeltaRuleIsThePublishedOne) {
  // One head, by matrices: S = a (I - beta k k^T) S + beta k v^T.
  const LinearInputs in({.name = "",
                         .H = 1,
                         .Hk = 1,
                         .N = 9,
                         .D = 3,
                         .E = 2,
                         .map = FeatureMap::Kind::identity,
                         .normalise = false,
                         .decay = Decay::per_token,
                         .delta = true},
                        DType::f64);
  const LinearResult got = forward(in);
  double S[3][2] = {};
  for (std::int64_t t = 0; t < 9; ++t) {
    const double a = std::exp(load(in.log_decay, 0, 0, t, 0)), beta = load(in.beta, 0, 0, t, 0);
    double next[3][2] = {};
    for (std::int64_t f = 0; f < 3; ++f)
      for (std::int64_t e = 0; e < 2; ++e) {
        for (std::int64_t j = 0; j < 3; ++j)
          next[f][e] += a * ((f == j ? 1 : 0) - beta * load(in.k, 0, 0, t, f) * load(in.k, 0, 0, t, j)) * S[j][e];
        next[f][e] += beta * load(in.k, 0, 0, t, f) * load(in.v, 0, 0, t, e);
      }
    std::memcpy(S, next, sizeof S);
    for (std::int64_t e = 0; e < 2; ++e) {
      double o = 0;
      for (std::int64_t f = 0; f < 3; ++f) o += S[f][e] * load(in.q, 0, 0, t, f);
      EXPECT_NEAR(load(got.out, 0, 0, t, e), o, 1e-12);
    }
  }
}

// Tokens [first, first + count) of a tensor.
View tokens(const View& x, std::int64_t first, std::int64_t count) {
  View part = x;
  part.shape[2] = count;
  part.data = static_cast<const char*>(x.data) + first * x.strides[2] * size_of(x.dtype);
  return part;
}
MutableView tokens(const MutableView& x, std::int64_t first, std::int64_t count) {
  const View part = tokens(View(x), first, count);
  return {part.dtype, const_cast<void*>(part.data), part.shape, part.strides};
}

LinearAttentionOptions options_for(const LinearInputs& in, std::int64_t first, std::int64_t count,
                                   const Tensor& state) {
  LinearAttentionOptions o = in.options;
  if (o.log_decay && o.log_decay->length() > 1) o.log_decay = tokens(*o.log_decay, first, count);
  if (o.beta) o.beta = tokens(*o.beta, first, count);
  o.initial_state = state.view();
  return o;
}

std::vector<LinearCase> stateful_cases(std::int64_t N) {
  const FeatureMap identity = FeatureMap::Kind::identity;
  return {{.name = "causal", .H = 4, .N = N},
          {.name = "retention",
           .H = 4,
           .N = N,
           .map = identity,
           .normalise = false,
           .decay = Decay::per_head,
           .decay_heads = 4},
          {.name = "gated", .N = N, .decay = Decay::per_token},
          {.name = "gated delta",
           .H = 4,
           .N = N,
           .map = identity,
           .normalise = false,
           .decay = Decay::per_token,
           .delta = true}};
}

TEST(LinearAttention, PiecesGiveTheBitsOfOneCall) {
  for (const LinearCase& c : stateful_cases(1000))
    for (const std::int64_t piece : {64, 128, 640, 100}) {
      const LinearInputs in(c, DType::f32);
      const LinearResult whole = forward(in);
      LinearResult got{Tensor(DType::f32, whole.out.shape()), Tensor(DType::f32, in.state_shape)};
      for (std::int64_t first = 0; first < c.N; first += piece) {
        const std::int64_t count = std::min(piece, c.N - first);
        const Tensor state = got.final_state.clone();
        linear_attention(tokens(in.q.view(), first, count), tokens(in.k.view(), first, count),
                         tokens(in.v.view(), first, count), tokens(got.out.view(), first, count),
                         options_for(in, first, count, state), got.final_state.view());
      }
      if (piece % 64 == 0) {
        EXPECT_TRUE(same_bits(got.out, whole.out)) << c.name << " " << piece;
        EXPECT_TRUE(same_bits(got.final_state, whole.final_state)) << c.name << " " << piece;
      }
      const double size = max_abs(whole.out);
      expect_within(got.out, whole.out, [&](auto...) { return 1e-5 * size; }, c.name);
    }
}

TEST(LinearAttention, StepsGiveWhatForwardGives) {
  for (const LinearCase& c : stateful_cases(150))
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64})
      for (const std::int64_t at_once : {1, 7}) {
        const LinearInputs in(c, dtype);
        const LinearResult whole = forward(in);
        Tensor out(dtype, whole.out.shape());
        Strided state(LinearInputs::wide(dtype), in.state_shape,
                      at_once == 1 ? MemoryLayout::packed : MemoryLayout::odd);
        copy(Tensor(state.view.dtype, in.state_shape), state.view);
        for (std::int64_t t = 0; t < c.N; t += at_once) {
          const std::int64_t count = std::min(at_once, c.N - t);
          LinearAttentionOptions o = options_for(in, t, count, Tensor(DType::f32, in.state_shape));
          o.initial_state.reset();
          linear_attention_step(tokens(in.q.view(), t, count), tokens(in.k.view(), t, count),
                                tokens(in.v.view(), t, count), tokens(out.view(), t, count), state.view, o);
        }
        const double size = max_abs(whole.out), state_size = max_abs(whole.final_state);
        const double f32 = dtype == DType::f64 ? 1e-14 : 3e-6;
        expect_within(
            out, whole.out,
            [&](auto b, auto h, auto i, auto e) {
              return 2.1 * rounding(dtype, load(whole.out, b, h, i, e)) + f32 * size;
            },
            c.name + name(dtype));
        expect_within(state.view, whole.final_state, [&](auto...) { return f32 * state_size; }, c.name + " state");
        EXPECT_EQ(state.damaged(), 0);
      }
}

// A state of one or two columns whose numbers do not follow one another.
TEST(LinearAttention, StepsOnANarrowStridedState) {
  for (const std::int64_t E : {1, 2}) {
    LinearAttentionOptions options{.map = FeatureMap::Kind::identity, .normalise = false};
    const Tensor q = random_tensor(DType::f32, {1, 1, 3, 5}, 1), k = random_tensor(DType::f32, {1, 1, 3, 5}, 2);
    const Tensor v = random_tensor(DType::f32, {1, 1, 3, E}, 3);
    Tensor out(DType::f32, {1, 1, 3, E}), expected(DType::f32, {1, 1, 3, E}), packed(DType::f32, {1, 1, 5, E});
    std::vector<float> memory(60, 0.0F);
    const MutableView state{DType::f32, memory.data(), {1, 1, 5, E}, {60, 60, 7, 3}};
    linear_attention_step(q, k, v, expected, packed, options);
    linear_attention_step(q, k, v, out, state, options);
    EXPECT_TRUE(same_bits(out, expected)) << E;
    for (std::int64_t f = 0; f < 5; ++f)
      for (std::int64_t e = 0; e < E; ++e) {
        EXPECT_EQ(load(state, 0, 0, f, e), load(packed, 0, 0, f, e)) << f << " " << e;
        memory[static_cast<std::size_t>(f * 7 + e * 3)] = 0;
      }
    EXPECT_EQ(memory, std::vector<float>(60, 0.0F));  // nothing around it was written
  }
}

TEST(LinearAttention, GradientsGoThroughPieces) {
  for (const LinearCase& c : stateful_cases(200)) {
    LinearInputs in(c, DType::f32);
    LinearBackwardResult whole = backward(in), got(in, DType::f32, DType::f32);
    const std::int64_t cut = 128;
    Tensor out(DType::f32, in.dout.shape()), middle(DType::f32, in.state_shape), zero(DType::f32, in.state_shape),
        dmiddle(DType::f32, in.state_shape);
    linear_attention(tokens(in.q.view(), 0, cut), tokens(in.k.view(), 0, cut), tokens(in.v.view(), 0, cut),
                     tokens(out.view(), 0, cut), options_for(in, 0, cut, zero), middle.view());
    const auto run = [&](std::int64_t first, std::int64_t count, const Tensor& state, std::optional<View> dfinal,
                         Tensor& dstate) {
      LinearAttentionGradients g{tokens(got.dq.view(), first, count), tokens(got.dk.view(), first, count),
                                 tokens(got.dv.view(), first, count)};
      g.dinitial_state = dstate.view();
      linear_attention_backward(tokens(in.dout.view(), first, count), tokens(in.q.view(), first, count),
                                tokens(in.k.view(), first, count), tokens(in.v.view(), first, count), g,
                                options_for(in, first, count, state), dfinal);
    };
    run(cut, c.N - cut, middle, {}, dmiddle);
    run(0, cut, zero, dmiddle.view(), got.dinitial);
    EXPECT_TRUE(same_bits(got.dq, whole.dq)) << c.name;
    EXPECT_TRUE(same_bits(got.dk, whole.dk)) << c.name;
    EXPECT_TRUE(same_bits(got.dv, whole.dv)) << c.name;
    EXPECT_TRUE(same_bits(got.dinitial, whole.dinitial)) << c.name;
  }
}

TEST(LinearAttention, TheStateOfAllKeysServesBackward) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const LinearInputs in({.name = "", .B = 2, .H = 4, .M = 40, .N = 900, .causal = false}, dtype);
    Tensor out(dtype, in.dout.shape()), state(dtype, in.state_shape);
    linear_attention(in.q, in.k, in.v, out, in.options, state.view());
    LinearBackwardResult wanted = backward(in), got(in, dtype, dtype);
    linear_attention_backward(in.dout, in.q, in.k, in.v, got.views(), in.options, {}, state.view());
    EXPECT_TRUE(same_bits(got.dq, wanted.dq) && same_bits(got.dk, wanted.dk) && same_bits(got.dv, wanted.dv));
    if (dtype == DType::f64) continue;  // the reference goes by the inputs alone
    for_each_element(state.shape(), [&](auto b, auto h, auto f, auto e) { store(state, b, h, f, e, 1); });
    linear_attention_backward(in.dout, in.q, in.k, in.v, got.views(), in.options, {}, state.view());
    EXPECT_FALSE(same_bits(got.dq, wanted.dq));  // it is what is read
  }
}

TEST(LinearAttention, DecaysFromNothingToAll) {
  // exp of each: 1, nearly 1, 0.5, tiny, below f32, exactly 0.
  const double logs[] = {0, -1e-7, -0.7, -80, -400, -kInf};
  for (const bool delta : {false, true}) {
    const LinearCase c{.name = delta ? "delta" : "sum",
                       .N = 200,
                       .map = FeatureMap::Kind::identity,
                       .normalise = false,
                       .decay = Decay::per_token,
                       .delta = delta};
    for (int which = 0; which <= 6; ++which) {  // each alone, then all mixed
      LinearInputs in(c, DType::f32);
      for_each_element(in.log_decay.shape(), [&](auto b, auto h, auto t, auto d) {
        store(in.log_decay, b, h, t, d, logs[which < 6 ? which : (t * 7 + h) % 11 % 6]);
      });
      const LinearResult got = forward(in), expected = forward(in, true);
      const LinearBackwardResult g = backward(in), e = backward(in, true);
      const auto compare = [&](const Tensor& a, const Tensor& b, const char* what) {
        const double size = max_abs(b);
        expect_within(
            a, b, [&](auto...) { return 3e-6 * size + 1e-37; }, c.name + " " + std::to_string(which) + " " + what);
      };
      compare(got.out, expected.out, "out");
      compare(got.final_state, expected.final_state, "state");
      compare(g.dq, e.dq, "dq");
      compare(g.dk, e.dk, "dk");
      compare(g.dv, e.dv, "dv");
      compare(g.dlog_decay, e.dlog_decay, "dlog_decay");
    }
  }
}

TEST(LinearAttention, ZeroDenominatorsGiveZeros) {
  for (const bool causal : {true, false}) {
    const LinearCase c{.name = "", .N = 70, .map = FeatureMap::Kind::relu, .causal = causal};
    LinearInputs in(c, DType::f32);
    for_each_element(in.q.shape(), [&](auto b, auto h, auto i, auto d) {
      if (i % 2 == 0) store(in.q, b, h, i, d, -1);  // no feature at all
    });
    for (std::int64_t d = 0; d < c.D; ++d) store(in.k, 0, 0, 0, d, -kInf);
    const LinearResult got = forward(in);
    const LinearBackwardResult g = backward(in);
    for (const Tensor* x : {&got.out, &g.dq, &g.dk, &g.dv})
      for_each_element(x->shape(),
                       [&](auto b, auto h, auto i, auto d) { ASSERT_TRUE(std::isfinite(load(*x, b, h, i, d))); });
    for_each_element(got.out.shape(), [&](auto b, auto h, auto i, auto e) {
      EXPECT_TRUE(i % 2 == 1 || load(got.out, b, h, i, e) == 0);
    });
    EXPECT_NE(load(got.out, 0, 1, 1, 0), 0);
  }
  // Features so small that f32 has none of them.
  const LinearCase c{.name = "", .N = 70};
  LinearInputs in(c, DType::f32);
  for_each_element(in.q.shape(), [&](auto b, auto h, auto i, auto d) {
    store(in.q, b, h, i, d, i == 3 ? -kInf : -80 - 0.3 * static_cast<double>(i));
  });
  const LinearResult got = forward(in);
  for_each_element(got.out.shape(),
                   [&](auto b, auto h, auto i, auto e) { ASSERT_TRUE(std::isfinite(load(got.out, b, h, i, e))); });
}

TEST(LinearAttention, EpsIsAddedToTheDenominator) {
  LinearInputs in({.name = "", .H = 1, .Hk = 1, .N = 1, .D = 1, .E = 1}, DType::f32);
  store(in.q, 0, 0, 0, 0, 1), store(in.k, 0, 0, 0, 0, 2), store(in.v, 0, 0, 0, 0, 5);  // features 2 and 3
  in.options.eps = 4;
  EXPECT_FLOAT_EQ(static_cast<float>(load(forward(in).out, 0, 0, 0, 0)), 3.0F);  // 2 * 3 * 5 / (2 * 3 + 4)
}

TEST(LinearAttention, AnyLayout) {
  for (const LinearCase& c : stateful_cases(70))
    for (const MemoryLayout layout : kMemoryLayouts) {
      const LinearInputs in(c, DType::f32);
      const LinearResult expected = forward(in);
      LinearBackwardResult wanted = backward(in);
      const Strided q(in.q, layout), k(in.k, layout), v(in.v, layout), dout(in.dout, layout);
      Strided out(expected.out, layout), dq(in.q, layout), dk(in.k, layout), dv(in.v, layout),
          last(expected.final_state, layout);
      linear_attention(q.view, k.view, v.view, out.view, in.options, last.view);
      linear_attention_backward(dout.view, q.view, k.view, v.view, {dq.view, dk.view, dv.view}, in.options);
      const auto equal = [](auto...) { return 0.0; };
      expect_within(out.view, expected.out, equal, c.name + " out");
      expect_within(last.view, expected.final_state, equal, c.name + " state");
      expect_within(dq.view, wanted.dq, equal, c.name + " dq");
      expect_within(dk.view, wanted.dk, equal, c.name + " dk");
      expect_within(dv.view, wanted.dv, equal, c.name + " dv");
      EXPECT_EQ(out.damaged() + dq.damaged() + dk.damaged() + dv.damaged() + last.damaged(), 0);
    }
}

TEST(LinearAttention, BitsDoNotDependOnTheThreads) {
  std::vector<LinearCase> cases = stateful_cases(700);
  cases.push_back({.name = "one head", .H = 1, .Hk = 1, .N = 3000});
  cases.push_back({.name = "full", .H = 4, .M = 300, .N = 3000, .causal = false});
  for (const LinearCase& c : cases) {
    const LinearInputs in(c, DType::f32);
    expect_same_for_any_threads([&] { return forward(in).out; }, c.name + " out");
    expect_same_for_any_threads([&] { return backward(in).dq; }, c.name + " dq");
    expect_same_for_any_threads([&] { return backward(in).dk; }, c.name + " dk");
    expect_same_for_any_threads([&] { return backward(in).dv; }, c.name + " dv");
    if (c.decay != Decay::none)
      expect_same_for_any_threads([&] { return backward(in).dlog_decay; }, c.name + " dlog_decay");
    if (c.delta) expect_same_for_any_threads([&] { return backward(in).dbeta; }, c.name + " dbeta");
  }
}

TEST(LinearAttention, SeveralWindows) {
  // States so wide that a window holds four chunks. Backward keeps the states of 400 by 400, and makes those of 600 by
  // 600, which pass 32 MiB, again.
  for (const int run : {0, 1, 2}) {
    const bool delta = run > 0, again = run > 1;
    const LinearCase c{.name = delta ? "wide delta" : "wide",
                       .H = 1,
                       .Hk = 1,
                       .N = again ? 1500 : 700,
                       .D = again ? 600 : 400,
                       .E = again ? 600 : 400,
                       .map = FeatureMap::Kind::identity,
                       .normalise = false,
                       .decay = Decay::per_head,
                       .delta = delta,
                       .states = true,
                       .size = 0.05};
    const LinearInputs in(c, DType::f32);
    LinearBackwardResult whole = backward(in);
    const LinearResult r = forward(in);
    // The directional derivative along a random tensor, by the engine itself, in two sizes of step.
    const Tensor direction = random_tensor(DType::f32, in.v.shape(), 9);
    LinearInputs moved(c, DType::f32);
    for_each_element(in.v.shape(), [&](auto b, auto h, auto i, auto d) {
      store(moved.v, b, h, i, d, load(in.v, b, h, i, d) + load(direction, b, h, i, d));
    });
    const LinearResult shifted = forward(moved);  // linear in v: the difference is the derivative
    const double numeric = dot(shifted.out, in.dout) - dot(r.out, in.dout) + dot(shifted.final_state, in.dfinal) -
                           dot(r.final_state, in.dfinal);
    EXPECT_NEAR(dot(whole.dv, direction), numeric, 1e-4 * std::abs(numeric) + 1e-2) << c.name;
    set_threads(1);
    const LinearBackwardResult alone = backward(in);
    set_threads(2);
    EXPECT_TRUE(same_bits(alone.dk, whole.dk));
  }
}

TEST(LinearAttention, NothingInIsNothingOut) {
  for (const bool causal : {true, false})
    for (const DType dtype : {DType::f32, DType::f64}) {
      for (const Shape& s : std::vector<Shape>{{0, 2, 5, 4}, {2, 0, 5, 4}, {2, 2, 0, 4}, {2, 2, 5, 0}}) {
        LinearCase c{.name = "empty",
                     .B = s[0],
                     .H = s[1],
                     .Hk = s[1],
                     .N = s[2],
                     .D = s[3],
                     .E = 3,
                     .causal = causal,
                     .states = causal};
        LinearInputs in(c, dtype);
        const LinearResult r = forward(in);
        EXPECT_EQ(max_abs(r.out), 0);
        LinearBackwardResult g = backward(in);
        EXPECT_EQ(max_abs(g.dq), 0);
        if (causal && s[2] == 0) {
          EXPECT_TRUE(same_bits(r.final_state, in.initial));
          EXPECT_TRUE(same_bits(g.dinitial, in.dfinal));
        }
      }
    }
  // No keys at all, or no queries.
  const LinearCase none{.name = "", .M = 3, .N = 0, .causal = false};
  EXPECT_EQ(max_abs(forward(LinearInputs(none, DType::f32)).out), 0);
  LinearInputs in({.name = "", .M = 3, .N = 70, .causal = false}, DType::f32);
  Tensor q(DType::f32, {1, 2, 0, 16}), dout(DType::f32, {1, 2, 0, 16}), dq(DType::f32, q.shape()),
      dk = random_tensor(DType::f32, in.k.shape(), 1), dv(DType::f32, in.v.shape());
  linear_attention_backward(dout, q, in.k, in.v, {dq, dk, dv}, in.options);
  EXPECT_EQ(max_abs(dk), 0);
}

TEST(LinearAttention, AsInnerAttention) {
  for (const LinearCase& c : stateful_cases(100)) {
    if (c.delta || c.decay == Decay::per_token) continue;
    LinearInputs in(c, DType::f32);
    const LinearResult expected = forward(in);
    const LinearBackwardResult wanted = backward(in);
    std::shared_ptr<InnerAttention> inner;
    {
      const Tensor copy = in.log_decay.empty() ? Tensor() : in.log_decay.clone();
      LinearAttentionOptions options = in.options;
      if (options.log_decay) options.log_decay = copy.view();
      inner = linear_attention_inner(options);  // keeps its own
    }
    EXPECT_STREQ(inner->name(), "linear attention");
    EXPECT_TRUE(inner->parameters().empty());
    Tensor out(DType::f32, expected.out.shape()), dq(DType::f32, in.q.shape()), dk(DType::f32, in.k.shape()),
        dv(DType::f32, in.v.shape());
    std::vector<Tensor> saved;
    inner->forward(in.q, in.k, in.v, out, &saved);
    EXPECT_TRUE(inner->backward(in.dout, in.q, in.k, in.v, out, saved, dq, dk, dv).empty());
    EXPECT_TRUE(same_bits(out, expected.out));
    EXPECT_TRUE(same_bits(dq, wanted.dq));
    EXPECT_TRUE(same_bits(dk, wanted.dk));
    EXPECT_TRUE(same_bits(dv, wanted.dv));
  }
  LinearInputs in(stateful_cases(10).back(), DType::f32);
  EXPECT_EQ(
      error_of([&] { linear_attention_inner(in.options); }),
      "linear_attention_inner: beta, initial_state or lengths was given, expected none: a layer has no place for them");
}

TEST(LinearAttention, BadArguments) {
  const LinearInputs in({.name = "", .B = 2, .H = 4, .N = 5, .D = 8, .E = 6}, DType::f32);
  Tensor out(DType::f32, {2, 4, 5, 6}), state(DType::f32, in.state_shape);
  const auto with = [&](const auto& change) {
    LinearAttentionOptions options;
    change(options);
    return error_of([&] { linear_attention(in.q, in.k, in.v, out, options); });
  };
  const Tensor scalars = random_tensor(DType::f32, {2, 3, 5, 1}, 1);
  EXPECT_EQ(with([](auto& o) { o.map.kind = static_cast<FeatureMap::Kind>(9); }),
            "linear_attention: feature map is 9, expected elu_plus_one, relu, identity or given (0-3)");
  EXPECT_EQ(with([](auto& o) { o.map.features = 3; }),
            "linear_attention: features is 3, expected 0: this map makes as many as dim");
  EXPECT_EQ(with([](auto& o) { o.map.kind = FeatureMap::Kind::given; }),
            "linear_attention: the feature map has no value function for f32");
  EXPECT_EQ(with([](auto& o) { o.scale = kInf; }), "linear_attention: scale is inf, expected a finite number");
  EXPECT_EQ(with([](auto& o) { o.eps = -1; }),
            "linear_attention: eps is -1.000000, expected a finite number from 0 up");
  EXPECT_EQ(with([](auto& o) { o.lengths = {5}; }), "linear_attention: number of lengths is 1, expected 2 (batch)");
  EXPECT_EQ(with([](auto& o) { o.lengths = {5, 6}; }), "linear_attention: lengths holds 6, expected 0 to 5 (k length)");
  EXPECT_EQ(with([&](auto& o) { o.log_decay = scalars.view(); }),
            "linear_attention: log_decay shape is [2, 3, 5, 1], expected [1 or 2, 1 or 2 or 4, 1 or 5, 1]");
  const Tensor positive = random_tensor(DType::f32, {2, 2, 5, 1}, 1);
  EXPECT_NE(with([&](auto& o) { o.log_decay = positive.view(); }).find("expected at most 0"), std::string::npos);
  EXPECT_EQ(with([&](auto& o) { o.beta = positive.view(); }),
            "linear_attention: normalise is on with beta, expected it off: the delta rule has no sum of weights to "
            "divide by");
  EXPECT_NE(with([&](auto& o) {
              o.causal = false, o.normalise = false, o.beta = positive.view();
            }).find("only the causal form"),
            std::string::npos);
  EXPECT_EQ(with([&](auto& o) { o.initial_state = scalars.view(); }),
            "linear_attention: initial_state shape is [2, 3, 5, 1], expected [2, 2, 8, 7]");
  const LinearInputs longer({.name = "", .B = 2, .H = 4, .M = 4, .N = 5, .D = 8, .E = 6}, DType::f32);
  EXPECT_EQ(error_of([&] { linear_attention(longer.q, longer.k, longer.v, out); }),
            "linear_attention: k length is 5, expected 4 (q length; causal: a key for each query)");
  EXPECT_EQ(error_of([&] { linear_attention(in.q, in.k, in.v, out, {}, Tensor(DType::f16, in.state_shape).view()); }),
            "linear_attention: final_state dtype is f16, expected f32");
  Tensor wrong(DType::f32, {2, 4, 5, 7});
  EXPECT_EQ(error_of([&] { linear_attention(in.q, in.k, in.v, wrong); }),
            "linear_attention: out shape is [2, 4, 5, 7], expected [2, 4, 5, 6]");
  const LinearInputs square({.name = "", .H = 2, .N = 5, .D = 6, .E = 6}, DType::f32);
  MutableView aliased{DType::f32, const_cast<void*>(square.q.view().data), square.q.shape(),
                      contiguous_strides(square.q.shape())};
  EXPECT_EQ(error_of([&] { linear_attention(square.q, square.k, square.v, aliased); }),
            "linear_attention: out shares memory with q, expected a place of its own");
  LinearBackwardResult g(in, DType::f32, DType::f32);
  LinearAttentionGradients views = g.views();
  views.dbeta = state.view();
  EXPECT_EQ(error_of([&] { linear_attention_backward(in.dout, in.q, in.k, in.v, views); }),
            "linear_attention_backward: dbeta was given, expected none: there is no beta");
  EXPECT_EQ(error_of([&] { linear_attention_step(in.q, in.k, in.v, out, wrong); }),
            "linear_attention_step: state shape is [2, 4, 5, 7], expected [2, 2, 8, 7]");
  LinearAttentionOptions full;
  full.causal = false;
  EXPECT_EQ(error_of([&] { linear_attention_step(in.q, in.k, in.v, out, state, full); }),
            "linear_attention_step: causal is off, expected it on: decoding has no later keys");
}

// What the functions of a map throw comes out of the call, from whichever thread.
TEST(LinearAttention, AFeatureMapMayThrow) {
  const Tensor x = random_tensor(DType::f32, {1, 2, 130, 8}, 1);
  Tensor out(DType::f32, {1, 2, 130, 8});
  const auto fails = [](auto, auto) { throw std::runtime_error("no features"); };
  const LinearAttentionOptions options{.map = FeatureMap(fails, [](auto, auto, auto) {})};
  EXPECT_THROW(linear_attention(x, x, x, out, options), std::runtime_error);
  EXPECT_NO_THROW(linear_attention(x, x, x, out));
}

}  // namespace
}  // namespace attend::test::ops
