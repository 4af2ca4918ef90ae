// The layer over a ring against the reference in double: forward, dx and every parameter's gradient.
#include <cstring>
#include <vector>

#include "attend/runtime.hpp"
#include "reference/multi_head_attention.hpp"
#include "ring/ring_testing.hpp"
#include "unit/layer_cases.hpp"

namespace attend::test::ops {
namespace {

struct RingLayerResult {
  Tensor y, dx;  // gathered, f64
  MultiHeadAttentionGradients gradients;
};

RingLayerResult run(const LayerProblem& p, const RingOptions& options) {
  const int rank = world_rank(), P = world_size();
  const Tensor x = ring_part(p.x, options.sharding, rank, P), dout = ring_part(p.dout, options.sharding, rank, P);
  MultiHeadAttentionSaved saved;
  const Tensor y = ring_multi_head_attention(world(), p.layer, x, options, &saved);
  RingLayerResult r;
  r.gradients = ring_multi_head_attention_backward(world(), p.layer, dout, saved, options);
  r.y = gathered(y, options.sharding);
  r.dx = gathered(r.gradients.dx, options.sharding);
  return r;
}

bool same_on_all_ranks(const Tensor& x) {
  std::vector<std::byte> first(static_cast<std::size_t>(x.bytes()));
  if (world_rank() == 0) std::memcpy(first.data(), x.view().data, first.size());
  MPI_Bcast(first.data(), static_cast<int>(first.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
  return std::memcmp(first.data(), x.view().data, first.size()) == 0;
}

class RingLayer : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Cases, RingLayer, testing::Values(0, 1, 2, 3, 5, 8, 10, 24, 27, 30, 33, 35));

// The bounds of LayerGradient.MatchesTheReference.
TEST_P(RingLayer, MatchesTheReference) {
  constexpr double kRoundings = 48;
  LayerCase c = layer_case(GetParam());
  ASSERT_FALSE(c.cross);
  c.M = c.N = 2 * world_size() * (1 + GetParam() % 3);
  for (const DType dtype : kFloats) {
    const LayerProblem p(c, dtype);
    const bool zigzag = GetParam() % 2 == 0 || GetParam() > 24;
    const RingOptions options{.sharding = zigzag ? RingSharding::zigzag : RingSharding::contiguous,
                              .attention = {.mask = GetParam() % 3 == 2 ? no_mask() : causal()}};
    const RingLayerResult got = run(p, options);
    const auto reference_backward = [&](const AttentionOptions& with) {
      return reference::multi_head_attention_backward(p.layer.config(), p.layer.parameters(), p.dout, p.x, std::nullopt,
                                                      with);
    };
    const MultiHeadAttentionGradients expected = reference_backward(options.attention),
                                      unmasked = reference_backward({});
    const auto check = [&](const View& result, const Tensor& truth, double size, const std::string& what) {
      const double allowed = kRoundings * rounding(dtype, size);
      expect_within(
          result, truth, [&](auto, auto, auto, auto) { return allowed; }, what + " in " + attend::name(dtype));
    };
    const Tensor truth =
        reference::multi_head_attention(p.layer.config(), p.layer.parameters(), p.x, std::nullopt, options.attention);
    check(got.y, truth, max_abs(truth), "output");
    check(got.dx, expected.dx, std::fmax(max_abs(expected.dx), max_abs(unmasked.dx)), "gradient of x");
    for (const auto& [what, member] : kParameters) {
      const Tensor &gradient = got.gradients.parameters.*member, &wanted = expected.parameters.*member;
      ASSERT_EQ(gradient.empty(), wanted.empty()) << what;
      if (gradient.empty()) continue;
      EXPECT_EQ(gradient.dtype(), dtype) << what;
      EXPECT_TRUE(same_on_all_ranks(gradient)) << what;
      double size = std::fmax(max_abs(wanted), max_abs(unmasked.parameters.*member));
      // Sums over all rows and heads whose terms cancel, in one process too (case 35 over 12 tokens: 2.6 times a bound
      // by its own size): as bk, measured by the weights' gradient, which is made of the same terms.
      if (std::string(what) == "bk" || std::string(what) == "k_norm")
        size = std::fmax(size, max_abs(unmasked.parameters.wk));
      check(gradient, wanted, size, std::string("gradient of ") + what);
    }
  }
}

TEST(RingLayerBits, AreTheSameEveryTimeAndForAnyThreads) {
  LayerCase c = layer_case(27);
  c.M = c.N = 2 * world_size() * 12;
  const LayerProblem p(c, DType::f32);
  const RingOptions options{.sharding = RingSharding::zigzag, .attention = {.mask = causal()}};
  const int before = threads();
  set_threads(1);
  const RingLayerResult first = run(p, options);
  for (const int count : {1, 2, 3}) {
    set_threads(count);
    const RingLayerResult again = run(p, options);
    EXPECT_TRUE(same_bits(again.y, first.y));
    EXPECT_TRUE(same_bits(again.dx, first.dx));
    for (const auto& [what, member] : kParameters) {
      const Tensor &a = again.gradients.parameters.*member, &b = first.gradients.parameters.*member;
      EXPECT_TRUE(b.empty() || same_bits(a, b)) << what;
    }
  }
  set_threads(before);
}

TEST(RingLayerArguments, AreRefusedOnAllRanks) {
  const MultiHeadAttention layer({.width = 8, .heads = 2});
  const int last = world_size() - 1;
  const std::string who = world_size() == 1 ? "" : "refused by rank " + std::to_string(last) + ": ";
  const Tensor x(DType::f32, {1, 1, 4, world_rank() == last ? 6 : 8});
  EXPECT_EQ(refusal_of([&] { ring_multi_head_attention(world(), layer, x); }),
            "ring_multi_head_attention: " + who + "x shape is [1, 1, 4, 6], expected [1, 1, 4, 8]");
  const MultiHeadAttention wide({.dtype = DType::f64, .width = 8, .heads = 2});
  const Tensor f64(DType::f64, {1, 1, 4, 8}), good(DType::f32, {1, 1, 4, 8});
  EXPECT_NE(refusal_of([&] { ring_multi_head_attention(world(), wide, f64); }).find("layer dtype is f64"),
            std::string::npos);
  MultiHeadAttentionSaved saved;
  EXPECT_NE(
      refusal_of([&] { ring_multi_head_attention_backward(world(), layer, good, saved); }).find("saved x shape is"),
      std::string::npos);
  if (world_size() == 1) return;
  const MultiHeadAttention other({.width = 8, .heads = world_rank() == last ? 4 : 2});
  EXPECT_EQ(refusal_of([&] { ring_multi_head_attention(world(), other, good); }),
            "ring_multi_head_attention: heads is 2 on rank 0 and 4 on rank " + std::to_string(last) +
                ", expected the same on all ranks");
}

}  // namespace
}  // namespace attend::test::ops
