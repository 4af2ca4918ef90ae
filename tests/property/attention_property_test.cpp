// Laws of attention, on problems that RapidCheck draws and shrinks.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/elements.hpp"
#include "support/buffer.hpp"
#include "support/compare.hpp"
#include "support/tensors.hpp"

namespace attend::test {
namespace {

using std::int64_t;

int64_t draw(int first, int last) {  // both included
  return *rc::gen::inRange(first, last + 1);
}

// Sizes around the kernels' tile of 64 keys, now and then past their split of 512.
Case draw_case(MaskKind mask) {
  Case c;
  c.dtype = *rc::gen::element(DType::f32, DType::bf16, DType::f16);
  c.B = draw(1, 2);
  c.Hk = draw(1, 2);
  c.H = c.Hk * draw(1, 3);
  c.M = draw(1, 40);
  c.N = draw(1, 10) == 1 ? draw(500, 600) : draw(1, 140);
  c.D = draw(1, 70);
  c.E = draw(1, 70);
  c.mask = mask;
  c.backward = true;
  return c;
}

MaskKind draw_mask() {
  return static_cast<MaskKind>(draw(0, static_cast<int>(kLastMask)));
}

std::vector<int64_t> draw_order(int64_t count) {
  std::vector<int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t n = order.size(); n > 1; --n)
    std::swap(order[n - 1], order[static_cast<std::size_t>(draw(0, static_cast<int>(n) - 1))]);
  return order;
}

// Row i of the result is row order[i] of x.
Tensor reordered(const View& x, const std::vector<int64_t>& order) {
  Tensor y(x.dtype, x.shape);
  for (int64_t b = 0; b < x.batch(); ++b) {
    for (int64_t h = 0; h < x.heads(); ++h) {
      for (int64_t i = 0; i < x.length(); ++i) {
        for (int64_t d = 0; d < x.dim(); ++d) {
          store(y, b, h, i, d, load(x, b, h, order[static_cast<std::size_t>(i)], d));
        }
      }
    }
  }
  return y;
}

Tensor scaled(const View& x, double factor) {
  Tensor y(x.dtype, x.shape);
  const std::vector<double> values = to_doubles(x);
  for (std::size_t n = 0; n < values.size(); ++n) {
    store_element(x.dtype, y.view().data, static_cast<int64_t>(n), factor * values[n]);
  }
  return y;
}

// The f32 bound of an element of the output, `times` over.
double output_bound(const Truth& truth, int64_t n, int64_t E, double times) {
  return times * 16 * 0x1p-24 * truth.magnitudes.score[static_cast<std::size_t>(n / E)] *
             truth.magnitudes.weighted[static_cast<std::size_t>(n)] +
         0x1p-120;
}

RC_GTEST_PROP(Property, WeightsSumToOne, ()) {
  const Case c = draw_case(draw_mask());
  const Problem p(c);
  const Truth truth = true_attention(p);
  Tensors t(p, c.dtype);
  set_all(t.v, 1);
  t.forward(p.options(c.dtype));
  for (int64_t b = 0; b < c.B; ++b) {
    for (int64_t h = 0; h < c.H; ++h) {
      for (int64_t i = 0; i < c.M; ++i) {
        const std::uint8_t* visible = p.visible_row(b, h, i);
        const bool blind = std::count(visible, visible + c.N, 0) == c.N;
        const double score = truth.magnitudes.score[static_cast<std::size_t>((b * c.H + h) * c.M + i)];
        // A half type has nothing between 1 and what that leaves: it must round to 1 itself.
        const double bound = c.dtype == DType::f32 ? 16 * 0x1p-24 * score : 0;
        for (int64_t e = 0; e < c.E; ++e) {
          const double got = load(t.out, b, h, i, e);
          RC_ASSERT((blind ? got == 0 : std::abs(got - 1) <= bound));
        }
      }
    }
  }
}

RC_GTEST_PROP(Property, QueriesInAnotherOrderGiveTheSameBits, ()) {
  const Case c = draw_case(MaskKind::none);
  const Problem p(c);
  const std::vector<int64_t> order = draw_order(c.M);
  Tensors t(p, c.dtype), moved(p, c.dtype);
  t.run(p.options(c.dtype));
  moved.q = reordered(t.q, order);
  moved.dout = reordered(t.dout, order);
  moved.run(p.options(c.dtype));
  RC_ASSERT(same_bits(moved.out, reordered(t.out, order)));
  RC_ASSERT(same_bits(moved.lse, reordered(t.lse, order)));
  RC_ASSERT(same_bits(moved.dq, reordered(t.dq, order)));
}

RC_GTEST_PROP(Property, KeysInAnotherOrderStayWithinBounds, ()) {
  const Case c = draw_case(MaskKind::none);
  const Problem p(c);
  const Truth truth = true_attention(p);
  const std::vector<int64_t> order = draw_order(c.N);
  std::vector<int64_t> back(order.size());
  for (std::size_t n = 0; n < order.size(); ++n) back[static_cast<std::size_t>(order[n])] = static_cast<int64_t>(n);
  Tensors t(p, c.dtype);
  t.k = reordered(t.k, order);
  t.v = reordered(t.v, order);
  t.run(p.options(c.dtype));
  Computed computed;
  computed.dtype = c.dtype;
  computed.out = to_doubles(t.out);
  computed.lse = to_doubles(t.lse);
  computed.dq = to_doubles(t.dq);
  computed.dk = to_doubles(reordered(t.dk, back));
  computed.dv = to_doubles(reordered(t.dv, back));
  const auto failures = compare(p, truth, naive_attention(p, c.dtype), computed);
  if (!failures.empty()) RC_FAIL(c.name() + ": " + failures.front());
}

// Attention over pieces of the keys, merged by their LSE, is attention over all of them.
RC_GTEST_PROP(Property, PiecesMergeToTheWhole, ()) {
  Case c = draw_case(*rc::gen::element(MaskKind::none, MaskKind::padding));
  c.dtype = DType::f32;
  const Problem p(c);
  const Truth truth = true_attention(p);
  std::vector<int64_t> cuts = {0, c.N};
  for (int64_t n = draw(0, 4); n > 0; --n) cuts.push_back(draw(0, static_cast<int>(c.N)));
  std::sort(cuts.begin(), cuts.end());

  const Tensors t(p, c.dtype);
  const auto rows = static_cast<std::size_t>(c.B * c.H * c.M);
  std::vector<double> sum(rows * static_cast<std::size_t>(c.E)), weight(rows);
  for (std::size_t n = 0; n + 1 < cuts.size(); ++n) {
    const int64_t first = cuts[n], count = cuts[n + 1] - cuts[n];
    AttentionOptions options;
    if (c.mask == MaskKind::padding) {
      std::vector<int64_t> lengths = *std::get<PaddingRule>(p.options(c.dtype).mask.rules.front()).ends;
      for (int64_t& length : lengths) length = std::clamp<int64_t>(length - first, 0, count);
      options.mask = padding(lengths);
    }
    const AttentionResult piece =
        attention(t.q, slice<View>(t.k, 2, first, count), slice<View>(t.v, 2, first, count), options, {.lse = true});
    const std::vector<double> out = to_doubles(piece.out), lse = to_doubles(piece.lse);
    for (std::size_t row = 0; row < rows; ++row) {
      const double w = std::exp(lse[row]);  // scores are small: no need to shift
      weight[row] += w;
      for (int64_t e = 0; e < c.E; ++e) {
        const auto at = row * static_cast<std::size_t>(c.E) + static_cast<std::size_t>(e);
        sum[at] += w * out[at];
      }
    }
  }
  for (std::size_t n = 0; n < sum.size(); ++n) {
    const double w = weight[n / static_cast<std::size_t>(c.E)];
    const double merged = w == 0 ? 0 : sum[n] / w;
    // Twice: the pieces' outputs, and their LSE, which is as large as the scores and log N.
    RC_ASSERT(std::abs(merged - truth.results.out[n]) <= output_bound(truth, static_cast<int64_t>(n), c.E, 2));
  }
}

// A later token moves nothing before it: neither outputs nor their gradients.
RC_GTEST_PROP(Property, TheFutureDoesNotMoveThePast, ()) {
  Case c = draw_case(MaskKind::causal_first);
  const Problem p(c);
  const int64_t token = draw(0, static_cast<int>(std::min(c.M, c.N)) - 1);
  Tensors t(p, c.dtype), changed(p, c.dtype);
  t.run(p.options(c.dtype));
  for (int64_t b = 0; b < c.B; ++b) {
    for (int64_t h = 0; h < c.Hk; ++h) {
      set_row(changed.k, b, h, token, 3);
      set_row(changed.v, b, h, token, -7);
    }
    for (int64_t h = 0; h < c.H; ++h) set_row(changed.q, b, h, token, 2);
  }
  changed.run(p.options(c.dtype));
  RC_ASSERT(same_bits(slice<View>(changed.out, 2, 0, token), slice<View>(t.out, 2, 0, token)));
  RC_ASSERT(same_bits(slice<View>(changed.lse, 2, 0, token), slice<View>(t.lse, 2, 0, token)));
  RC_ASSERT(same_bits(slice<View>(changed.dq, 2, 0, token), slice<View>(t.dq, 2, 0, token)));
  RC_ASSERT(!same_bits(changed.out, t.out));
}

// Shared KV heads are repeated KV heads, to the bit.
RC_GTEST_PROP(Property, GroupedHeadsAreRepeatedHeads, ()) {
  const Case c = draw_case(draw_mask());
  const Problem p(c);
  Tensors t(p, c.dtype), repeated(p, c.dtype);
  t.run(p.options(c.dtype));
  const auto repeat = [&](const Tensor& x) {
    Tensor y(x.dtype(), {c.B, c.H, x.shape()[2], x.shape()[3]});
    for (int64_t b = 0; b < c.B; ++b) {
      for (int64_t h = 0; h < c.H; ++h) {
        for (int64_t j = 0; j < c.N; ++j) {
          for (int64_t d = 0; d < x.shape()[3]; ++d) store(y, b, h, j, d, load(x, b, h / (c.H / c.Hk), j, d));
        }
      }
    }
    return y;
  };
  repeated.k = repeat(t.k);
  repeated.v = repeat(t.v);
  repeated.dk = Tensor(c.dtype, repeated.k.shape());
  repeated.dv = Tensor(c.dtype, repeated.v.shape());
  repeated.run(p.options(c.dtype));
  RC_ASSERT(same_bits(repeated.out, t.out));
  RC_ASSERT(same_bits(repeated.lse, t.lse));
  RC_ASSERT(same_bits(repeated.dq, t.dq));
}

// A power of two may stand in the scale or in the queries (upwards: f16 has no room below).
RC_GTEST_PROP(Property, ScaleFoldsIntoQueries, ()) {
  const Case c = draw_case(draw_mask());
  const Problem p(c);
  Tensors t(p, c.dtype), folded(p, c.dtype);
  t.forward(p.options(c.dtype));
  const double factor = *rc::gen::element(2.0, 4.0, 16.0);
  folded.q = scaled(t.q, factor);
  AttentionOptions options = p.options(c.dtype);
  options.scale = p.scale() / factor;
  folded.forward(options);
  RC_ASSERT(same_bits(folded.out, t.out));
  RC_ASSERT(same_bits(folded.lse, t.lse));
}

// Doubling V doubles the output exactly; adding values adds outputs within bounds.
RC_GTEST_PROP(Property, LinearInValues, ()) {
  Case c = draw_case(draw_mask());
  c.dtype = DType::f32;
  const Problem p(c);
  const Truth truth = true_attention(p);
  Tensors t(p, c.dtype), other(p, c.dtype), both(p, c.dtype);
  t.forward(p.options(c.dtype));
  other.v = scaled(t.v, 2);
  other.forward(p.options(c.dtype));
  RC_ASSERT(same_bits(other.out, scaled(t.out, 2)));

  // v + v of other heads' making: the same numbers in another order, so that magnitudes stay known.
  const std::vector<int64_t> order = draw_order(c.N);
  other.v = reordered(t.v, order);
  other.forward(p.options(c.dtype));
  const std::vector<double> x = to_doubles(t.v), y = to_doubles(other.v);
  double largest = 0;
  for (std::size_t n = 0; n < x.size(); ++n) {
    store_element(DType::f32, both.v.view().data, static_cast<int64_t>(n), x[n] + y[n]);
    largest = std::max(largest, std::abs(x[n]));
  }
  both.forward(p.options(c.dtype));
  const std::vector<double> a = to_doubles(t.out), b = to_doubles(other.out), sum = to_doubles(both.out);
  for (std::size_t n = 0; n < sum.size(); ++n) {
    const double size = truth.magnitudes.score[n / static_cast<std::size_t>(c.E)] * 2 * largest;
    RC_ASSERT(std::abs(sum[n] - a[n] - b[n]) <= 2 * 16 * 0x1p-24 * size);
  }
}

// A constant on all scores moves the LSE by itself and the output not at all.
RC_GTEST_PROP(Property, ShiftOfAllScores, ()) {
  Case c = draw_case(draw_mask());
  const Problem p(c);
  Tensors t(p, c.dtype), shifted(p, c.dtype);
  t.forward(p.options(c.dtype));
  const float shift = *rc::gen::element(-20.0f, -1.5f, 0.25f, 3.0f, 40.0f);
  AttentionOptions options = p.options(c.dtype);
  options.bias = view_of(&shift, {1, 1, 1, 1});
  shifted.forward(options);
  const std::vector<double> lse = to_doubles(t.lse), moved = to_doubles(shifted.lse);
  for (std::size_t n = 0; n < lse.size(); ++n) {
    const double wanted = lse[n] + static_cast<double>(shift);
    RC_ASSERT(moved[n] == wanted || std::abs(moved[n] - wanted) <= 2e-5 * (1 + std::abs(wanted)));
  }
  const std::vector<double> out = to_doubles(t.out), same = to_doubles(shifted.out);
  for (std::size_t n = 0; n < out.size(); ++n) {
    RC_ASSERT(std::abs(same[n] - out[n]) <= 1e-4 + 2 * half_ulp(c.dtype, std::abs(out[n])));
  }
}

// A rule and the same rule written out as a dense matrix.
RC_GTEST_PROP(Property, RulesAreTheirDenseMatrices, ()) {
  const Case c = draw_case(draw_mask());
  const Problem p(c);
  std::vector<std::uint8_t> bits;
  for (int64_t b = 0; b < c.B; ++b) {
    for (int64_t h = 0; h < c.H; ++h) {
      for (int64_t i = 0; i < c.M; ++i) bits.insert(bits.end(), p.visible_row(b, h, i), p.visible_row(b, h, i) + c.N);
    }
  }
  Tensors t(p, c.dtype), written(p, c.dtype);
  t.run(p.options(c.dtype));
  AttentionOptions options = p.options(c.dtype);
  options.mask = dense(bits.data(), {c.B, c.H, c.M, c.N});
  written.run(options);
  RC_ASSERT(written.difference(t) == std::string());
}

}  // namespace
}  // namespace attend::test
