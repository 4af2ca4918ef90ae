// Tests of Reformer's attention: hashes, who meets whom, values and gradients against the definition, recall.
#include "attend/reformer.hpp"

#include <algorithm>
#include <set>

#include "attend/attention.hpp"
#include "reference/reformer.hpp"
#include "unit/error_of.hpp"
#include "unit/op_testing.hpp"

namespace attend::test::ops {
namespace {

struct Case {
  std::int64_t B, H, Hv, L, D, E;
  std::int64_t rounds, chunk;
  std::vector<std::int64_t> buckets;
  bool causal;
};
const std::vector<Case> kCases = {
    {1, 1, 1, 1, 1, 1, 1, 1, {}, false},          {2, 4, 2, 37, 8, 5, 2, 5, {4}, true},
    {1, 2, 2, 150, 16, 24, 3, 16, {}, false},     {2, 2, 1, 200, 64, 64, 2, 64, {2, 4}, true},
    {1, 3, 3, 129, 32, 16, 4, 32, {6, 2}, false}, {1, 1, 1, 70, 4, 3, 2, 1000, {2}, true},
    {1, 2, 1, 90, 8, 8, 1, 3, {64}, false},       {2, 2, 1, 1300, 16, 8, 2, 48, {4}, false},
    {1, 2, 2, 1100, 8, 12, 2, 600, {2}, true},
};

struct Problem {
  Problem(const Case& c, DType dtype)
      : q(random_tensor(dtype, {c.B, c.H, c.L, c.D}, 1)),
        v(random_tensor(dtype, {c.B, c.Hv, c.L, c.E}, 2)),
        dout(random_tensor(dtype, {c.B, c.H, c.L, c.E}, 3)) {
    options.rounds = c.rounds, options.chunk = c.chunk, options.buckets = c.buckets, options.causal = c.causal;
    options.seed = 11;
  }
  Shape lse_shape() const { return {q.shape()[0], q.shape()[1], q.shape()[2], 1}; }

  Tensor q, v, dout;
  ReformerOptions options;
};

// `terms`: the size of what is added up, where that is more than the result.
auto bound_of(DType dtype, const Tensor& expected, double steps, double half_steps, double terms = 0) {
  const double size = std::max(terms, max_abs(expected));
  // Backward reads an output that was rounded, which shows even where the gradient itself is zero.
  const double half = dtype == DType::f32 ? 0 : half_steps * unit_roundoff(dtype) * std::max(size, 0.5);
  return [&expected, dtype, all = steps * unit_roundoff(DType::f32) * size + half](auto b, auto h, auto i, auto d) {
    return 1.01 * rounding(dtype, load(expected, b, h, i, d)) + all;
  };
}

void expect_matches_reference(const Problem& p, DType dtype, const std::string& what, double dq_terms = 0) {
  const auto hashes = reformer_hashes(p.q, p.options);
  Tensor out(dtype, p.dout.shape()), lse(DType::f32, p.lse_shape());
  reformer(p.q, p.v, out, p.options, lse.view());
  Tensor expected(DType::f64, out.shape()), expected_lse(DType::f64, lse.shape());
  reference::reformer(p.q, p.v, hashes, expected, p.options, expected_lse.view());
  expect_within(out, expected, bound_of(dtype, expected, 16, 0), what + " out");
  expect_within(lse, expected_lse, bound_of(DType::f32, expected_lse, 16, 0), what + " lse");

  Tensor dq(dtype, p.q.shape()), dv(dtype, p.v.shape());
  reformer_backward(p.dout, p.q, p.v, out, lse, {dq, dv}, p.options);
  Tensor expected_dq(DType::f64, dq.shape()), expected_dv(DType::f64, dv.shape());
  reference::reformer_backward(p.dout, p.q, p.v, hashes, {expected_dq, expected_dv}, p.options);
  expect_within(dq, expected_dq, bound_of(dtype, expected_dq, 32, 1, dq_terms), what + " dq");
  expect_within(dv, expected_dv, bound_of(dtype, expected_dv, 32, 1), what + " dv");
}

TEST(Reformer, MatchesTheReferencePerElement) {
  for (const DType dtype : kFloats)
    for (std::size_t n = 0; n < kCases.size(); ++n)
      expect_matches_reference(Problem(kCases[n], dtype), dtype, std::string(name(dtype)) + " " + std::to_string(n));
}

// Scores that f32 holds exactly but whose LSE it does not: rounds are merged, and weights made again, without it.
TEST(Reformer, LargeScoresMatchTheReference) {
  for (const DType dtype : kFloats) {
    Problem p({1, 2, 1, 200, 4, 6, 3, 16, {4}, false}, dtype);
    for (std::int64_t n = 0; n < p.q.size(); ++n) store_element(dtype, p.q.view().data, n, 0.0);
    for_each_element(p.lse_shape(), [&](auto b, auto h, auto i, auto) {
      const double sign = uniform(5, static_cast<std::uint64_t>(h * 200 + i)) < 0.5 ? -1 : 1;
      store(p.q, b, h, i, i % 3, sign * (i % 2 == 0 ? 1 : 2));
    });
    p.options.scale = 1e6;
    // Keys that score alike are the same key: their gradients cancel in dq.
    expect_matches_reference(p, dtype, std::string(name(dtype)) + " large", 4e6);
  }
}

// The hashes are those of the definition, wherever its two largest products are further apart than f32 rounds.
TEST(Reformer, HashesAreTheLargestProjection) {
  const Problem p({2, 2, 1, 300, 24, 8, 3, 16, {10, 4}, false}, DType::f32);
  const Tensor rotations = reformer_rotations(2, 300, 24, p.options);
  ASSERT_EQ(rotations.shape(), (Shape{3, 2, 7, 24}));
  const auto got = reformer_hashes(p.q, p.options), wanted = reference::reformer_hashes(p.q, rotations, {10, 4});
  ASSERT_EQ(got.size(), wanted.size());
  std::int64_t different = 0;
  for (std::size_t n = 0; n < got.size(); ++n) different += got[n] != wanted[n];
  EXPECT_LE(different, 1);
  EXPECT_EQ(std::set<std::int32_t>(got.begin(), got.end()).size(), 40U);
  // Half of the buckets are the other half's opposites.
  Tensor opposite = p.q.clone();
  for (std::int64_t n = 0; n < opposite.size(); ++n) opposite.data<float>()[n] *= -1;
  const auto turned = reformer_hashes(opposite, p.options);
  for (std::size_t n = 0; n < got.size(); ++n) {
    EXPECT_EQ(turned[n] % 10, (got[n] % 10 + 5) % 10);
    EXPECT_EQ(turned[n] / 10, (got[n] / 10 + 2) % 4);
  }
  // A seed, a round and a head have rotations of their own, whatever the number of heads.
  ReformerOptions other = p.options;
  other.seed = 12;
  EXPECT_NE(load(reformer_rotations(2, 300, 24, other), 0, 0, 0, 0), load(rotations, 0, 0, 0, 0));
  EXPECT_NE(load(rotations, 1, 0, 0, 0), load(rotations, 0, 0, 0, 0));
  EXPECT_NE(load(rotations, 0, 1, 0, 0), load(rotations, 0, 0, 0, 0));
  EXPECT_EQ(load(reformer_rotations(5, 300, 24, p.options), 1, 1, 6, 3), load(rotations, 1, 1, 6, 3));
}

TEST(Reformer, ChosenBucketsAreAboutAsManyAsChunks) {
  for (const std::int64_t length : {1, 100, 1000, 4096, 8192, 10000, 16384, 65536, 1 << 20}) {
    const std::vector<std::int64_t> factors = reformer_factors(length);
    double buckets = 1;
    for (const std::int64_t factor : factors) {
      EXPECT_EQ(factor % 2, 0);
      EXPECT_LE(factor, 64);
      buckets *= static_cast<double>(factor);
    }
    const double wanted = std::max(2.0, static_cast<double>(length) / 64);
    EXPECT_LE(buckets, 1.35 * wanted) << length;
    EXPECT_GE(buckets, 0.7 * wanted) << length;
  }
  EXPECT_EQ(reformer_factors(4096), std::vector<std::int64_t>{64});
  EXPECT_EQ(reformer_factors(65536), (std::vector<std::int64_t>{32, 32}));
}

// One bucket for all, one chunk for all: exact attention that leaves out the token itself.
TEST(Reformer, IsExactAttentionWhereAllMeet) {
  for (const bool causal : {false, true}) {
    Problem p({1, 1, 1, 80, 8, 6, 3, 200, {2}, causal}, DType::f32);
    for (std::int64_t i = 0; i < 80; ++i) store(p.q, 0, 0, i, 0, 300);  // nearly one direction
    const auto hashes = reformer_hashes(p.q, p.options);
    for (std::int64_t round = 0; round < 3; ++round) {
      const auto first = hashes.begin() + round * 80;
      ASSERT_EQ(std::set<std::int32_t>(first, first + 80).size(), 1U);
    }
    Tensor out(DType::f32, p.dout.shape()), k(DType::f32, p.q.shape());
    reformer(p.q, p.v, out, p.options);
    std::vector<std::uint8_t> seen(6400);
    for (std::int64_t i = 0; i < 80; ++i) {
      double norm = 0;
      for (std::int64_t d = 0; d < 8; ++d) norm += std::pow(load(p.q, 0, 0, i, d), 2);
      for (std::int64_t d = 0; d < 8; ++d) store(k, 0, 0, i, d, load(p.q, 0, 0, i, d) / std::sqrt(norm));
      for (std::int64_t j = 0; j < 80; ++j)
        seen[static_cast<std::size_t>(i * 80 + j)] = (causal ? j < i : j != i) || (causal && i == 0 && j == 0);
    }
    AttentionOptions options;
    options.mask = dense(seen.data(), {1, 1, 80, 80});
    const AttentionResult exact = attention(p.q, k, p.v, options);
    expect_within(out, exact.out, [](auto, auto, auto, auto) { return 2e-4; }, "all meet");
    EXPECT_NEAR(reformer_recall(p.q, p.options), 1, 1e-9);
  }
}

TEST(Reformer, OneWhoMeetsNobodyAttendsToItself) {
  const Problem p({1, 1, 1, 20, 4, 3, 1, 1, {64}, true}, DType::f32);
  const auto hashes = reformer_hashes(p.q, p.options);
  const auto meetings = reference::reformer_meetings(hashes, 0, 0, p.q.shape(), p.options);
  Tensor out(DType::f32, p.dout.shape()), lse(DType::f32, p.lse_shape());
  reformer(p.q, p.v, out, p.options, lse.view());
  std::int64_t lonely = 0;
  for (std::int64_t i = 0; i < 20; ++i) {
    if (meetings[static_cast<std::size_t>(i * 20 + i)] == 0) continue;
    ++lonely;
    for (std::int64_t e = 0; e < 3; ++e) EXPECT_EQ(load(out, 0, 0, i, e), load(p.v, 0, 0, i, e));
  }
  EXPECT_GT(lonely, 3);
  EXPECT_LT(lonely, 20);
}

TEST(Reformer, ZeroRowsAndBadNumbersStayTame) {
  for (const bool causal : {false, true}) {
    Problem p({1, 2, 2, 60, 8, 8, 2, 8, {4}, causal}, DType::f32);
    for (std::int64_t d = 0; d < 8; ++d) {
      for (const std::int64_t i : {0, 7, 30}) store(p.q, 0, 0, i, d, 0);
    }
    expect_matches_reference(p, DType::f32, "zero rows");
    store(p.q, 0, 1, 5, 3, std::nan(""));  // no crash; the other head does not notice
    Tensor out(DType::f32, p.dout.shape()), lse(DType::f32, p.lse_shape());
    reformer(p.q, p.v, out, p.options, lse.view());
    Tensor dq(DType::f32, p.q.shape()), dv(DType::f32, p.v.shape());
    reformer_backward(p.dout, p.q, p.v, out, lse, {dq, dv}, p.options);
    for (std::int64_t i = 0; i < 60; ++i) {
      EXPECT_TRUE(std::isfinite(load(out, 0, 0, i, 0)));
      EXPECT_TRUE(std::isfinite(load(dq, 0, 0, i, 0)));
    }
  }
}

TEST(Reformer, AnyLayout) {
  for (const DType dtype : kFloats) {
    const Problem p(kCases[1], dtype);
    Tensor out(dtype, p.dout.shape()), lse(DType::f32, p.lse_shape()), dq(dtype, p.q.shape()), dv(dtype, p.v.shape());
    reformer(p.q, p.v, out, p.options, lse.view());
    reformer_backward(p.dout, p.q, p.v, out, lse, {dq, dv}, p.options);
    for (const MemoryLayout layout : {MemoryLayout::length_major, MemoryLayout::odd}) {
      const Strided q(p.q, layout), v(p.v, layout), dout(p.dout, layout);
      Strided to(dtype, out.shape(), layout), to_dq(dtype, dq.shape(), layout), to_dv(dtype, dv.shape(), layout);
      reformer(q.view, v.view, to.view, p.options);
      reformer_backward(dout.view, q.view, v.view, to.view, lse, {to_dq.view, to_dv.view}, p.options);
      const auto exact = [](auto, auto, auto, auto) { return 0.0; };
      expect_within(to.view, out, exact, "out");
      expect_within(to_dq.view, dq, exact, "dq");
      expect_within(to_dv.view, dv, exact, "dv");
      EXPECT_EQ(to.damaged() + to_dq.damaged() + to_dv.damaged(), 0);
    }
  }
}

TEST(Reformer, GradientsByCentralDifferences) {
  for (const bool causal : {false, true}) {
    Problem p({2, 2, 1, 14, 3, 2, 3, 3, {4}, causal}, DType::f64);
    p.options.scale = 0.9;
    const auto hashes = reformer_hashes(p.q, p.options);
    Tensor out(DType::f64, p.dout.shape()), lse(DType::f64, p.lse_shape());
    const auto loss = [&] {
      EXPECT_EQ(reformer_hashes(p.q, p.options), hashes);  // a step must not carry a token into another bucket
      reformer(p.q, p.v, out, p.options, lse.view());
      return dot(out, p.dout);
    };
    loss();
    Tensor dq(DType::f64, p.q.shape()), dv(DType::f64, p.v.shape());
    reformer_backward(p.dout, p.q, p.v, out, lse, {dq, dv}, p.options);
    expect_gradient(dq, p.q, loss, "q");
    expect_gradient(dv, p.v, loss, "v");
  }
}

TEST(Reformer, NothingToDo) {
  for (const Case& c : {Case{0, 2, 1, 4, 3, 2, 2, 2, {}, false}, Case{2, 2, 1, 0, 3, 2, 2, 2, {}, true}}) {
    const Problem p(c, DType::f32);
    Tensor out(DType::f32, p.dout.shape()), lse(DType::f32, p.lse_shape());
    Tensor dq(DType::f32, p.q.shape()), dv(DType::f32, p.v.shape());
    reformer(p.q, p.v, out, p.options, lse.view());
    reformer_backward(p.dout, p.q, p.v, out, lse, {dq, dv}, p.options);
    EXPECT_TRUE(reformer_hashes(p.q, p.options).empty());
    EXPECT_EQ(reformer_recall(p.q, p.options), 1);
  }
}

TEST(Reformer, BitsDoNotDependOnTheThreads) {
  for (const bool causal : {false, true}) {
    const Problem p({2, 2, 1, 900, 16, 16, 3, 32, {}, causal}, DType::f32);
    Tensor out(DType::f32, p.dout.shape()), lse(DType::f32, p.lse_shape());
    reformer(p.q, p.v, out, p.options, lse.view());
    expect_same_for_any_threads(
        [&] {
          Tensor again(DType::f32, out.shape());
          reformer(p.q, p.v, again, p.options);
          return again;
        },
        "out");
    for (const bool of_q : {true, false})
      expect_same_for_any_threads(
          [&] {
            Tensor dq(DType::f32, p.q.shape()), dv(DType::f32, p.v.shape());
            reformer_backward(p.dout, p.q, p.v, out, lse, {dq, dv}, p.options);
            return of_q ? std::move(dq) : std::move(dv);
          },
          of_q ? "dq" : "dv");
  }
}

// Where tokens come in clusters, a hash finds most of the weight, and more rounds find more of it.
TEST(Reformer, RecallGrowsWithTheRounds) {
  constexpr std::int64_t kLength = 1024, kDim = 32;
  Tensor q(DType::f32, {1, 2, kLength, kDim});
  for_each_element(q.shape(), [&](auto, auto h, auto i, auto d) {
    const auto centre = static_cast<std::uint64_t>((i * 7 % 16) * kDim + d);
    store(q, 0, h, i, d,
          6 * normal(1, centre) + 0.8 * normal(2, static_cast<std::uint64_t>((h * kLength + i) * kDim + d)));
  });
  ReformerOptions options;
  options.causal = true;
  double before = 0;
  for (const std::int64_t rounds : {1, 2, 8}) {
    options.rounds = rounds;
    const double recall = reformer_recall(q, options);
    EXPECT_GT(recall, before);
    EXPECT_LE(recall, 1);
    before = recall;
  }
  EXPECT_GT(before, 0.8);
  // What is found is a share of exact weight: with nothing to tell keys apart, of the keys.
  const Tensor flat = random_tensor(DType::f32, {1, 1, 2048, 16}, 5, 1e-4);
  options.rounds = 1;
  const auto hashes = reformer_hashes(flat, options);
  const auto meetings = reference::reformer_meetings(hashes, 0, 0, flat.shape(), options);
  double share = 0;
  for (std::int64_t i = 1; i < 2048; ++i) {
    double met = 0;
    for (std::int64_t j = 0; j < i; ++j) met += meetings[static_cast<std::size_t>(i * 2048 + j)];
    share += met / static_cast<double>(i) / 2047;
  }
  EXPECT_NEAR(reformer_recall(flat, options, 2048), share, 1e-4);
}

TEST(Reformer, BadArgumentsAreTold) {
  const Problem p(kCases[1], DType::f32);
  Tensor out(DType::f32, p.dout.shape()), lse(DType::f32, p.lse_shape());
  const auto said = [&](auto change) {
    ReformerOptions options = p.options;
    change(options);
    return error_of([&] { reformer(p.q, p.v, out, options); });
  };
  EXPECT_NE(said([](auto& o) { o.rounds = 0; }).find("reformer: rounds is 0, expected 1 to 256"), std::string::npos);
  EXPECT_NE(said([](auto& o) { o.chunk = 0; }).find("chunk is 0"), std::string::npos);
  EXPECT_NE(said([](auto& o) { o.buckets = {3}; }).find("is 3, expected an even number"), std::string::npos);
  EXPECT_NE(said([](auto& o) { o.buckets = {4, 0}; }).find("is 0"), std::string::npos);
  EXPECT_NE(said([](auto& o) { o.buckets = {1 << 20, 2}; }).find("more than 1048576 buckets"), std::string::npos);
  EXPECT_NE(said([](auto& o) { o.scale = std::nan(""); }).find("scale is"), std::string::npos);
  EXPECT_EQ(said([](auto& o) { o.chunk = std::int64_t{1} << 62; }), "");
  const Tensor three(DType::f32, {2, 3, 37, 5}), half(DType::f16, {2, 2, 37, 5}), short_v(DType::f32, {2, 2, 36, 5});
  EXPECT_NE(error_of([&] { reformer(p.q, three, out); }).find("q has 4 heads and v 3"), std::string::npos);
  EXPECT_NE(error_of([&] { reformer(p.q, half, out); }).find("v dtype is f16"), std::string::npos);
  EXPECT_NE(error_of([&] { reformer(p.q, short_v, out); }).find("v length is 36"), std::string::npos);
  Tensor dq(DType::f32, p.q.shape()), dv(DType::f32, p.v.shape());
  EXPECT_NE(error_of([&] { reformer_backward(p.dout, p.q, p.v, out, out, {dq, dv}); }).find("lse shape"),
            std::string::npos);
  Tensor inside = p.q.clone();
  EXPECT_NE(error_of([&] { reformer_backward(p.dout, inside, p.v, out, lse, {inside, dv}); }).find("dq"),
            std::string::npos);
  EXPECT_NE(error_of([&] { reformer_recall(p.q, p.options, 0); }).find("samples is 0"), std::string::npos);
}

TEST(ReformerInner, SharesQueriesAndKeys) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    const Problem p(kCases[1], dtype);
    const auto inner = reformer_inner(p.options);
    EXPECT_TRUE(inner->parameters().empty());
    const Tensor k = random_tensor(dtype, {2, 2, 37, 8}, 9);
    const DType wide = dtype == DType::f64 ? DType::f64 : DType::f32;
    Tensor out(dtype, p.dout.shape()), expected(dtype, out.shape()), lse(wide, p.lse_shape());
    std::vector<Tensor> saved;
    inner->forward(p.q, k, p.v, out, &saved);
    reformer(p.q, p.v, expected, p.options, lse.view());
    EXPECT_TRUE(same_bits(out, expected));
    Tensor dq(dtype, p.q.shape()), dk = random_tensor(dtype, k.shape(), 10), dv(dtype, p.v.shape());
    Tensor wanted_dq(dtype, p.q.shape()), wanted_dv(dtype, p.v.shape());
    EXPECT_TRUE(inner->backward(p.dout, p.q, k, p.v, out, saved, dq, dk, dv).empty());
    reformer_backward(p.dout, p.q, p.v, out, lse, {wanted_dq, wanted_dv}, p.options);
    EXPECT_TRUE(same_bits(dq, wanted_dq) && same_bits(dv, wanted_dv));
    EXPECT_EQ(max_abs(dk), 0);
    const Tensor longer(dtype, {2, 2, 40, 8});
    EXPECT_NE(error_of([&] { inner->forward(p.q, longer, p.v, out, nullptr); }).find("queries and keys are shared"),
              std::string::npos);
  }
  ReformerOptions bad;
  bad.buckets = {7};
  EXPECT_NE(error_of([&] { reformer_inner(bad); }).find("even"), std::string::npos);
}

}  // namespace
}  // namespace attend::test::ops
