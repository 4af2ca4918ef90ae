// Tests of Luong's dot, general and concat scores.
#include "attend/additive_attention.hpp"
#include "unit/error_of.hpp"
#include "unit/op_testing.hpp"

namespace attend::test::ops {
namespace {

struct Aligned {
  Aligned(Alignment alignment, DType dtype, bool per_head, std::uint64_t key)
      : score(alignment),
        q(random_tensor(dtype, {2, 4, 5, 6}, key)),
        k(random_tensor(dtype, {2, 2, 7, alignment == Alignment::dot ? 6 : 3}, key + 1)),
        v(random_tensor(dtype, {2, 2, 7, 4}, key + 2)),
        wq(random_tensor(dtype, {1, per_head ? 4 : 1, alignment == Alignment::general ? 3 : 5, 6}, key + 3, 0.5)),
        wk(random_tensor(dtype, {1, per_head ? 2 : 1, 5, 3}, key + 4, 0.5)),
        w(random_tensor(dtype, {1, 4, 1, 5}, key + 5)),
        dout(random_tensor(dtype, {2, 4, 5, 4}, key + 6)),
        out(dtype, {2, 4, 5, 4}),
        lse(dtype == DType::f64 ? DType::f64 : DType::f32, {2, 4, 5, 1}) {}

  AlignmentWeights weights() const { return {wq.view(), wk.view(), w.view()}; }
  void forward() { aligned_attention(score, q, k, v, weights(), out, options, lse); }

  Alignment score;
  AdditiveAttentionOptions options{causal(), 0.8};
  Tensor q, k, v, wq, wk, w, dout, out, lse;
};

// s for one pair, by the definitions of the header.
double aligned_score(const Aligned& x, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
  const std::int64_t hq = x.wq.shape()[1] == 1 ? 0 : h, hk = x.wk.shape()[1] == 1 ? 0 : h / 2;
  double s = 0;
  if (x.score == Alignment::dot) {
    for (std::int64_t d = 0; d < 6; ++d) s += load(x.q, b, h, i, d) * load(x.k, b, h / 2, j, d);
    return s;
  }
  for (std::int64_t o = 0; o < x.wq.shape()[2]; ++o) {
    double projected = 0;
    for (std::int64_t d = 0; d < 6; ++d) projected += load(x.wq, 0, hq, o, d) * load(x.q, b, h, i, d);
    if (x.score == Alignment::general) {
      s += projected * load(x.k, b, h / 2, j, o);
      continue;
    }
    for (std::int64_t d = 0; d < 3; ++d) projected += load(x.wk, 0, hk, o, d) * load(x.k, b, h / 2, j, d);
    s += load(x.w, 0, h, 0, o) * std::tanh(projected);
  }
  return s;
}

TEST(AlignedAttention, MatchesItsDefinition) {
  for (const Alignment score : {Alignment::dot, Alignment::general, Alignment::concat}) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      for (const bool per_head : {false, true}) {
        Aligned x(score, dtype, per_head, 7000);
        x.forward();
        for_each_element(x.out.shape(), [&](auto b, auto h, auto i, auto e) {
          double sum = 0, value = 0;
          for (std::int64_t j = 0; j <= i + 2; ++j) {  // five queries at the end of seven keys
            const double weight = std::exp(0.8 * aligned_score(x, b, h, i, j));
            sum += weight, value += weight * load(x.v, b, h / 2, j, e);
          }
          EXPECT_NEAR(load(x.out, b, h, i, e), value / sum, dtype == DType::f64 ? 1e-13 : 2e-6);
          EXPECT_NEAR(load(x.lse, b, h, i, 0), std::log(sum), dtype == DType::f64 ? 1e-13 : 2e-6);
        });
      }
    }
  }
}

TEST(AlignedAttention, GradientsByCentralDifferences) {
  for (const Alignment score : {Alignment::dot, Alignment::general, Alignment::concat}) {
    for (const bool per_head : {false, true}) {
      Aligned x(score, DType::f64, per_head, 7100);
      const auto like = [](const Tensor& t) { return Tensor(t.dtype(), t.shape()); };
      Tensor dq = like(x.q), dk = like(x.k), dv = like(x.v), dwq = like(x.wq), dwk = like(x.wk), dw = like(x.w);
      x.forward();
      aligned_attention_backward(score, x.dout, x.q, x.k, x.v, x.weights(), x.out, x.lse,
                                 {dq, dk, dv, dwq.view(), dwk.view(), dw.view()}, x.options);
      const auto loss = [&] {
        x.forward();
        return dot(x.out, x.dout);
      };
      expect_gradient(dq, x.q, loss, "q");
      expect_gradient(dk, x.k, loss, "k");
      expect_gradient(dv, x.v, loss, "v");
      if (score != Alignment::dot) expect_gradient(dwq, x.wq, loss, "wq");
      if (score == Alignment::concat) expect_gradient(dwk, x.wk, loss, "wk");
      if (score == Alignment::concat) expect_gradient(dw, x.w, loss, "w");
    }
  }
}

TEST(AlignedAttention, BadArgumentsSayWhatAndWhy) {
  Aligned x(Alignment::concat, DType::f32, false, 7200);
  const auto error = [&](Alignment score, const AlignmentWeights& weights) {
    return error_of([&] { aligned_attention(score, x.q, x.k, x.v, weights, x.out); });
  };
  EXPECT_EQ(error(Alignment::general, {}), "aligned_attention: wq is missing, expected a matrix for this alignment");
  EXPECT_EQ(error(Alignment::concat, {x.wq.view(), x.wk.view(), {}}),
            "aligned_attention: w is missing, expected a vector for this alignment");
  EXPECT_EQ(error(Alignment::general, x.weights()),
            "aligned_attention: wq shape is [1, 1, 5, 6], expected [1, 1, 3, 6]");
  EXPECT_EQ(error(static_cast<Alignment>(9), x.weights()),
            "aligned_attention: alignment is 9, expected dot, general or concat");
  EXPECT_EQ(error(Alignment::dot, {}), "attention: k dim is 3, expected 6 (q dim)");
  EXPECT_EQ(error_of([&] {
              aligned_attention_backward(Alignment::concat, x.dout, x.q, x.k, x.v, x.weights(), x.out, x.lse,
                                         {x.q.view(), x.k.view(), x.v.view(), {}, {}, {}});
            }),
            "aligned_attention: dwq is missing, expected a place for the gradient of this alignment");
}

}  // namespace
}  // namespace attend::test::ops
