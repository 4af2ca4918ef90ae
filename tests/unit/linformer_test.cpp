// Tests of Linformer: against its definition in double, gradients, padding, layouts, threads, bad arguments.
#include "attend/linformer.hpp"

#include <algorithm>
#include <cstring>

#include "reference/linformer.hpp"
#include "unit/error_of.hpp"
#include "unit/op_testing.hpp"

namespace attend::test::ops {
namespace {

struct Case {
  std::int64_t B, H, Hk, M, N, D, V, rank, length;
  bool per_head, shared;
};
const std::vector<Case> kCases = {
    {1, 1, 1, 1, 1, 1, 1, 1, 1, false, false},        {2, 4, 2, 37, 53, 8, 5, 7, 53, true, false},
    {1, 3, 3, 70, 70, 64, 64, 33, 96, false, true},   {2, 2, 1, 130, 201, 16, 24, 64, 300, false, false},
    {1, 6, 2, 65, 600, 32, 16, 100, 600, true, true}, {3, 2, 2, 5, 20, 4, 3, 32, 64, true, false},
};

struct Problem {
  Problem(const Case& c, DType dtype)
      : q(random_tensor(dtype, {c.B, c.H, c.M, c.D}, 1)),
        k(random_tensor(dtype, {c.B, c.Hk, c.N, c.D}, 2)),
        v(random_tensor(dtype, {c.B, c.Hk, c.N, c.V}, 3)),
        dout(random_tensor(dtype, {c.B, c.H, c.M, c.V}, 4)) {
    const Shape shape{1, c.per_head ? c.Hk : 1, c.rank, c.length};
    const double size = 1 / std::sqrt(static_cast<double>(c.length));
    e = random_tensor(dtype, shape, 5, size);
    if (!c.shared) f = random_tensor(dtype, shape, 6, size);
    options.mask = no_mask();
  }
  std::optional<View> f_view() const { return f.empty() ? std::nullopt : std::optional<View>(f.view()); }
  Shape lse_shape() const { return {q.shape()[0], q.shape()[1], q.shape()[2], 1}; }

  Tensor q, k, v, dout, e, f;
  LinformerOptions options;
};

// The gradients of a problem, in a dtype: full of NaN, so that a number that backward does not write is seen.
struct Gradients {
  Gradients(const Problem& p, DType dtype)
      : dq(dtype, p.q.shape()), dk(dtype, p.k.shape()), dv(dtype, p.v.shape()), de(dtype, p.e.shape()) {
    if (!p.f.empty()) df = Tensor(dtype, p.e.shape());
    for (Tensor* x : {&dq, &dk, &dv, &de, &df})
      if (!x->empty()) std::memset(x->view().data, 0xFF, static_cast<std::size_t>(x->bytes()));
  }
  LinformerGradients views() {
    LinformerGradients result{dq, dk, dv, de, {}};
    if (!df.empty()) result.df = df.view();
    return result;
  }
  std::vector<std::pair<const char*, const Tensor*>> all() const {
    std::vector<std::pair<const char*, const Tensor*>> result{{"dq", &dq}, {"dk", &dk}, {"dv", &dv}, {"de", &de}};
    if (!df.empty()) result.emplace_back("df", &df);
    return result;
  }
  Tensor dq, dk, dv, de, df;
};

// What a row's rounding adds: one rounding to the dtype, and f32 sums as large as the largest element.
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
  linformer(p.q, p.k, p.v, p.e, p.f_view(), out, p.options, {lse.view(), {}, {}});
  Tensor expected(DType::f64, out.shape()), expected_lse(DType::f64, lse.shape());
  reference::linformer(p.q, p.k, p.v, p.e, p.f_view(), expected, p.options, expected_lse.view());
  expect_within(out, expected, bound_of(dtype, expected, 16, 0), what + " out");
  expect_within(lse, expected_lse, bound_of(DType::f32, expected_lse, 16, 0), what + " lse");

  Gradients got(p, dtype), wanted(p, DType::f64);
  linformer_backward(p.dout, p.q, p.k, p.v, p.e, p.f_view(), out, lse, got.views(), p.options);
  reference::linformer_backward(p.dout, p.q, p.k, p.v, p.e, p.f_view(), wanted.views(), p.options);
  for (std::size_t n = 0; n < got.all().size(); ++n) {
    const Tensor& expect = *wanted.all()[n].second;
    expect_within(*got.all()[n].second, expect, bound_of(dtype, expect, 32, 1), what + " " + got.all()[n].first);
  }
}

TEST(Linformer, MatchesTheReferencePerElement) {
  for (const DType dtype : kFloats)
    for (std::size_t n = 0; n < kCases.size(); ++n)
      expect_matches_reference(Problem(kCases[n], dtype), dtype, std::string(name(dtype)) + " " + std::to_string(n));
}

// Backward from projections that forward kept is backward from projections made anew.
TEST(Linformer, KeepsItsProjections) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    Problem p(kCases[1], dtype);
    p.options.mask = padding({53, 20});
    const DType wide = dtype == DType::f64 ? DType::f64 : DType::f32;
    Tensor out(dtype, p.dout.shape()), lse(wide, p.lse_shape());
    Tensor keys(wide, {2, 2, 7, 8}), values(wide, {2, 2, 7, 5});
    linformer(p.q, p.k, p.v, p.e, p.f_view(), out, p.options, {lse.view(), keys.view(), values.view()});
    const Tensor expected_keys = reference::linformer_projected(p.e, p.k, p.options);
    const Tensor expected_values = reference::linformer_projected(p.f, p.v, p.options);
    expect_within(keys, expected_keys, bound_of(wide, expected_keys, 8, 0), "keys");
    expect_within(values, expected_values, bound_of(wide, expected_values, 8, 0), "values");
    Gradients anew(p, dtype), kept(p, dtype);
    linformer_backward(p.dout, p.q, p.k, p.v, p.e, p.f_view(), out, lse, anew.views(), p.options);
    linformer_backward(p.dout, p.q, p.k, p.v, p.e, p.f_view(), out, lse, kept.views(), p.options,
                       {keys.view(), values.view()});
    for (std::size_t n = 0; n < 5; ++n) EXPECT_TRUE(same_bits(*anew.all()[n].second, *kept.all()[n].second));
    EXPECT_NE(error_of([&] {
                linformer_backward(p.dout, p.q, p.k, p.v, p.e, p.f_view(), out, lse, kept.views(), p.options,
                                   {keys.view(), {}});
              }).find("values are missing"),
              std::string::npos);
    EXPECT_NE(error_of([&] {
                linformer(p.q, p.k, p.v, p.e, p.f_view(), out, p.options, {{}, values.view(), {}});
              }).find("keys shape"),
              std::string::npos);
  }
}

TEST(Linformer, PaddedKeysAreLeftOut) {
  for (const DType dtype : kFloats) {
    Problem p(kCases[1], dtype);
    p.options.mask = padding({53, 20});
    expect_matches_reference(p, dtype, "padding");
    p.options.mask = padding({40, 0}) & left_padding({7});
    expect_matches_reference(p, dtype, "both sides, and a sequence of nothing");
  }
  // What stands in the padding does not matter, not even a NaN.
  Problem p(kCases[1], DType::f32);
  p.options.mask = padding({53, 20});
  Tensor out(DType::f32, p.dout.shape()), again(DType::f32, p.dout.shape()), lse(DType::f32, p.lse_shape());
  linformer(p.q, p.k, p.v, p.e, p.f_view(), out, p.options);
  for (std::int64_t j = 20; j < 53; ++j) store(p.k, 1, 0, j, 0, std::nan("")), store(p.v, 1, 1, j, 2, HUGE_VAL);
  linformer(p.q, p.k, p.v, p.e, p.f_view(), again, p.options, {lse.view(), {}, {}});
  EXPECT_TRUE(same_bits(out, again));
  Gradients g(p, DType::f32);
  linformer_backward(p.dout, p.q, p.k, p.v, p.e, p.f_view(), out, lse, g.views(), p.options);
  for (std::int64_t j = 20; j < 53; ++j)
    for (std::int64_t h = 0; h < 2; ++h) {
      for (std::int64_t d = 0; d < 8; ++d)
        EXPECT_EQ(load(g.dk, 1, h, j, d), 0) << "a key in the padding has no gradient";
      for (std::int64_t d = 0; d < 5; ++d) EXPECT_EQ(load(g.dv, 1, h, j, d), 0);
    }
  for (const auto& [what, gradient] : g.all()) EXPECT_TRUE(std::isfinite(max_abs(*gradient))) << what;
}

TEST(Linformer, AnyLayout) {
  const Case c = kCases[3];
  for (const DType dtype : kFloats) {
    const Problem p(c, dtype);
    Tensor out(dtype, p.dout.shape()), lse(DType::f32, p.lse_shape());
    linformer(p.q, p.k, p.v, p.e, p.f_view(), out, p.options, {lse.view(), {}, {}});
    Gradients wanted(p, dtype);
    linformer_backward(p.dout, p.q, p.k, p.v, p.e, p.f_view(), out, lse, wanted.views(), p.options);
    for (const MemoryLayout layout : {MemoryLayout::length_major, MemoryLayout::odd}) {
      const Strided q(p.q, layout), k(p.k, layout), v(p.v, layout), e(p.e, layout), f(p.f, layout),
          dout(p.dout, layout);
      Strided to(dtype, out.shape(), layout), dq(dtype, p.q.shape(), layout), dk(dtype, p.k.shape(), layout);
      Strided dv(dtype, p.v.shape(), layout), de(dtype, p.e.shape(), layout), df(dtype, p.e.shape(), layout);
      linformer(q.view, k.view, v.view, e.view, f.view, to.view, p.options);
      linformer_backward(dout.view, q.view, k.view, v.view, e.view, f.view, to.view, lse,
                         {dq.view, dk.view, dv.view, de.view, df.view}, p.options);
      const auto exact = [](auto, auto, auto, auto) { return 0.0; };
      expect_within(to.view, out, exact, "out");
      expect_within(dq.view, wanted.dq, exact, "dq");
      expect_within(dk.view, wanted.dk, exact, "dk");
      expect_within(dv.view, wanted.dv, exact, "dv");
      expect_within(de.view, wanted.de, exact, "de");
      expect_within(df.view, wanted.df, exact, "df");
      EXPECT_EQ(to.damaged() + dq.damaged() + dk.damaged() + dv.damaged() + de.damaged() + df.damaged(), 0);
    }
  }
}

TEST(Linformer, GradientsByCentralDifferences) {
  for (const bool shared : {false, true}) {
    for (const bool per_head : {false, true}) {
      Problem p({2, 4, 2, 3, 5, 3, 2, 4, 6, per_head, shared}, DType::f64);
      p.options.mask = padding({5, 3});
      p.options.scale = 0.7;
      Tensor out(DType::f64, p.dout.shape()), lse(DType::f64, p.lse_shape());
      const auto loss = [&] {
        linformer(p.q, p.k, p.v, p.e, p.f_view(), out, p.options, {lse.view(), {}, {}});
        return dot(out, p.dout);
      };
      loss();
      Gradients g(p, DType::f64);
      linformer_backward(p.dout, p.q, p.k, p.v, p.e, p.f_view(), out, lse, g.views(), p.options);
      expect_gradient(g.dq, p.q, loss, "q");
      expect_gradient(g.dk, p.k, loss, "k");
      expect_gradient(g.dv, p.v, loss, "v");
      expect_gradient(g.de, p.e, loss, "e");
      if (!shared) expect_gradient(g.df, p.f, loss, "f");
    }
  }
}

TEST(Linformer, NothingToDo) {
  for (const Case& c : {Case{0, 2, 1, 4, 6, 3, 2, 2, 6, false, false}, Case{2, 2, 1, 0, 6, 3, 2, 2, 6, false, false},
                        Case{2, 2, 1, 4, 0, 3, 2, 2, 6, false, false}}) {
    const Problem p(c, DType::f32);
    Tensor out = random_tensor(DType::f32, p.dout.shape(), 9), lse(DType::f32, p.lse_shape());
    linformer(p.q, p.k, p.v, p.e, p.f_view(), out, p.options, {lse.view(), {}, {}});
    EXPECT_EQ(max_abs(out), 0);
    Gradients g(p, DType::f32);
    store(g.de, 0, 0, 1, 1, 5);
    linformer_backward(p.dout, p.q, p.k, p.v, p.e, p.f_view(), out, lse, g.views(), p.options);
    for (const auto& [what, gradient] : g.all()) EXPECT_EQ(max_abs(*gradient), 0) << what;
  }
}

TEST(Linformer, BitsDoNotDependOnTheThreads) {
  const Problem p({2, 4, 2, 300, 500, 32, 32, 120, 500, false, false}, DType::f32);
  Tensor out(DType::f32, p.dout.shape()), lse(DType::f32, p.lse_shape());
  linformer(p.q, p.k, p.v, p.e, p.f_view(), out, p.options, {lse.view(), {}, {}});
  expect_same_for_any_threads(
      [&] {
        Tensor again(DType::f32, out.shape());
        linformer(p.q, p.k, p.v, p.e, p.f_view(), again);
        return again;
      },
      "out");
  for (std::size_t n = 0; n < 5; ++n)
    expect_same_for_any_threads(
        [&] {
          Gradients g(p, DType::f32);
          linformer_backward(p.dout, p.q, p.k, p.v, p.e, p.f_view(), out, lse, g.views());
          return g.all()[n].second->clone();
        },
        "gradient " + std::to_string(n));
}

TEST(Linformer, BadArgumentsAreTold) {
  const Problem p(kCases[1], DType::f32);
  Tensor out(DType::f32, p.dout.shape()), lse(DType::f32, p.lse_shape());
  const auto said = [&](const LinformerOptions& options) {
    return error_of([&] { linformer(p.q, p.k, p.v, p.e, p.f_view(), out, options); });
  };
  const char* why = "expected padding alone: each projected key mixes all positions";
  EXPECT_NE(said({causal(), {}}).find("linformer: the mask is causal, " + std::string(why)), std::string::npos);
  EXPECT_NE(said({causal(), {}}).find("the future"), std::string::npos);
  EXPECT_NE(said({window(3, kUnlimited), {}}).find("the mask is a window"), std::string::npos);
  EXPECT_NE(said({segments({0, 53}), {}}).find("segments"), std::string::npos);
  EXPECT_NE(said({padding({1, 2, 3}), {}}).find("3 values, expected 1 or 2"), std::string::npos);
  EXPECT_NE(said({{}, HUGE_VAL}).find("scale is inf"), std::string::npos);

  const auto with = [&](const Shape& e) {
    const Tensor other(DType::f32, e);
    return error_of([&] { linformer(p.q, p.k, p.v, other, std::nullopt, out); });
  };
  EXPECT_NE(with({1, 1, 54, 53}).find("rank 54 for a length of 53"), std::string::npos);
  EXPECT_NE(with({1, 1, 4, 52}).find("k length is 53, expected at most 52 (the length of e)"), std::string::npos);
  EXPECT_NE(with({1, 3, 4, 53}).find("e"), std::string::npos);
  EXPECT_NE(with({1, 1, 0, 53}).find("rank 0"), std::string::npos);
  EXPECT_EQ(with({1, 1, 4, 53}), "");
  const Tensor other(DType::f32, {1, 1, 4, 53});
  EXPECT_NE(error_of([&] { linformer(p.q, p.k, p.v, p.e, other, out); }).find("f shape"), std::string::npos);
  const Tensor half(DType::f16, p.e.shape());
  EXPECT_NE(error_of([&] { linformer(p.q, p.k, p.v, half, std::nullopt, out); }).find("e dtype is f16"),
            std::string::npos);
  Tensor inside = p.k.clone();
  EXPECT_NE(error_of([&] {
              linformer(p.q, inside, p.v, p.e, std::nullopt, view_of(inside.data<float>(), out.shape()));
            }).find("out"),
            std::string::npos);

  Gradients g(p, DType::f32);
  LinformerGradients gradients = g.views();
  gradients.df.reset();
  const auto backward = [&] {
    return error_of([&] { linformer_backward(p.dout, p.q, p.k, p.v, p.e, p.f_view(), out, lse, gradients); });
  };
  EXPECT_NE(backward().find("df is missing"), std::string::npos);
  gradients = g.views();
  gradients.dk = g.dv;
  EXPECT_NE(backward().find("dk"), std::string::npos);
  gradients = g.views();
  gradients.dv = g.dv, gradients.de = *gradients.df;
  EXPECT_NE(backward().find("df"), std::string::npos);
  EXPECT_NE(error_of([&] {
              linformer_backward(p.dout, p.q, p.k, p.v, p.e, std::nullopt, out, lse, g.views());
            }).find("there is no f"),
            std::string::npos);
}

TEST(LinformerInner, IsTheFunctionWithItsParameters) {
  for (const bool shared : {false, true}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
      const auto inner =
          linformer_inner({.dtype = dtype, .length = 60, .rank = 9, .kv_heads = 2, .shared = shared, .seed = 3});
      const auto parameters = inner->parameters();
      ASSERT_EQ(parameters.size(), shared ? 1U : 2U);
      EXPECT_EQ(parameters[0].name, "e");
      double squares = 0;
      for_each_element(parameters[0].value.shape, [&](auto b, auto h, auto i, auto d) {
        squares += std::pow(load(parameters[0].value, b, h, i, d), 2);
      });
      EXPECT_NEAR(squares / (2 * 9), 1, 0.25);  // variance 1 / length
      if (!shared) {
        EXPECT_EQ(parameters[1].name, "f");
        EXPECT_NE(load(parameters[0].value, 0, 0, 0, 0), load(parameters[1].value, 0, 0, 0, 0));
      }
      Problem p(kCases[1], dtype);
      copy(parameters[0].value, p.e = Tensor(dtype, parameters[0].value.shape));
      p.f = Tensor();
      if (!shared) copy(parameters[1].value, p.f = Tensor(dtype, p.e.shape()));
      const DType wide = dtype == DType::f64 ? DType::f64 : DType::f32;
      Tensor out(dtype, p.dout.shape()), expected(dtype, out.shape()), lse(wide, p.lse_shape());
      std::vector<Tensor> saved;
      inner->forward(p.q, p.k, p.v, out, &saved);
      linformer(p.q, p.k, p.v, p.e, p.f_view(), expected, {}, {lse.view(), {}, {}});
      EXPECT_TRUE(same_bits(out, expected));
      Gradients wanted(p, dtype), got(p, dtype);
      wanted.de = Tensor(wide, p.e.shape());
      if (!shared) wanted.df = Tensor(wide, p.e.shape());
      linformer_backward(p.dout, p.q, p.k, p.v, p.e, p.f_view(), out, lse, wanted.views());
      const std::vector<Tensor> learned = inner->backward(p.dout, p.q, p.k, p.v, out, saved, got.dq, got.dk, got.dv);
      EXPECT_TRUE(same_bits(got.dq, wanted.dq) && same_bits(got.dk, wanted.dk) && same_bits(got.dv, wanted.dv));
      ASSERT_EQ(learned.size(), parameters.size());
      EXPECT_TRUE(same_bits(learned[0], wanted.de));
      if (!shared) {
        EXPECT_TRUE(same_bits(learned[1], wanted.df));
      }
    }
  }
  EXPECT_NE(error_of([] { linformer_inner({.length = 4, .rank = 5}); }).find("rank is 5, expected 1 to 4"),
            std::string::npos);
  EXPECT_NE(error_of([] { linformer_inner({.rank = 5}); }).find("length is 0"), std::string::npos);
  EXPECT_NE(error_of([] { linformer_inner({.length = 4, .rank = 2, .kv_heads = 0}); }).find("kv_heads is 0"),
            std::string::npos);
}

}  // namespace
}  // namespace attend::test::ops
