// A network in training: its gradients against central differences in double, and its other forms against that.
#include "llm/train/network.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "attend/error.hpp"
#include "attend/runtime.hpp"
#include "train_tiny.hpp"

namespace attend::llm {
namespace {

class Family : public testing::TestWithParam<std::string> {};

TEST_P(Family, GradientsOfEveryParameterAreCentralDifferences) {
  const ModelConfig config = tiny(GetParam());
  const TrainingBatch batch = batch_of(config, {5, 1, 6});
  constexpr double kFactor = 0.7, kBalance = 0.3;
  Network network(config, {.compute = DType::f64, .tokens = 12, .balance = kBalance});
  fill(network);
  const auto targets = static_cast<double>(12 - std::count(batch.targets.begin(), batch.targets.end(), kIgnored));
  const auto objective = [&] {
    const double loss = network.loss(batch);
    return kFactor * (loss + targets * kBalance * network.balance_loss());
  };
  network.loss_and_gradients(batch, kFactor, false);
  expect_central_differences(
      network.layout(), network.parameters(), network.gradients(), objective, [&](const Parameter& p, double largest) {
        // What is added to all keys alike changes no weight, unless the keys are rotated then.
        const bool none = p.name.ends_with("k_proj.bias") && config.positions != PositionKind::rope;
        // An expert that no token came to has none; where each token uses two of four, all are used.
        const bool unused = config.experts.used == 1 && p.name.find(".experts.") != std::string::npos;
        EXPECT_TRUE(largest > 1e-6 ? !none : none || (unused && largest == 0))
            << p.name << " has no gradient at all: the test would not see a mistake";
      });
}

TEST_P(Family, BackwardHasAFactorForEachToken) {
  const ModelConfig config = tiny(GetParam());
  const TrainingBatch batch = batch_of(config, {5, 1, 6});
  Network network(config, {.compute = DType::f64, .tokens = 12, .dropout = 0.25});
  fill(network);
  const double sum = network.forward(batch, 3, true);
  double losses = 0;
  for (std::int64_t t = 0; t < 12; ++t) losses += load_element(DType::f64, network.losses().data, t);
  EXPECT_EQ(losses, sum);
  // One for all: the same as in one call.
  network.backward(batch, 0.7, false);
  std::vector<double> gradients(static_cast<std::size_t>(network.layout().count()));
  for (std::size_t i = 0; i < gradients.size(); ++i) gradients[i] = gradient_at(network, static_cast<std::int64_t>(i));
  EXPECT_EQ(network.loss_and_gradients(batch, 0.7, false, 3), sum);
  for (std::size_t i = 0; i < gradients.size(); ++i)
    ASSERT_EQ(gradient_at(network, static_cast<std::int64_t>(i)), gradients[i]);
  // One each: the sum of those of the tokens alone.
  std::vector<double> factors(12), sums(gradients.size());
  for (std::size_t t = 0; t < 12; ++t) {
    factors[t] = normal(5, t);
    TrainingBatch one = batch;
    for (std::size_t other = 0; other < 12; ++other)
      if (other != t) one.targets[other] = kIgnored;
    network.loss_and_gradients(one, factors[t], false, 3);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += gradient_at(network, static_cast<std::int64_t>(i));
  }
  network.forward(batch, 3, true);
  network.backward(batch, factors, false);
  for (std::size_t i = 0; i < sums.size(); ++i)
    ASSERT_NEAR(gradient_at(network, static_cast<std::int64_t>(i)), sums[i], 1e-11) << i;
}

TEST_P(Family, AFrozenNetworkHasTheSameLossesInLessMemory) {
  const ModelConfig config = tiny(GetParam());
  const TrainingBatch batch = batch_of(config, {5, 1, 6});
  const NetworkOptions options{.tokens = 12}, frozen_options{.tokens = 12, .frozen = true};
  Network network(config, options), frozen(config, frozen_options);
  fill(network);
  fill(frozen);
  EXPECT_EQ(network.loss(batch), frozen.loss(batch));
  for (std::int64_t t = 0; t < 12; ++t)
    EXPECT_EQ(load_element(DType::f32, network.losses().data, t), load_element(DType::f32, frozen.losses().data, t));
  EXPECT_LT(2 * buffer_bytes(config, frozen_options), buffer_bytes(config, options));
  EXPECT_THROW(frozen.backward(batch, 1, false), InvalidArgument);
  EXPECT_THROW(frozen.loss_and_gradients(batch, 1, false), InvalidArgument);
}

TEST(TrainNetwork, BalanceIsOneWhereAllExpertsAreAlike) {
  ModelConfig config = tiny("moe");
  const TrainingBatch batch = batch_of(config, {5, 1, 6});
  Network network(config, {.compute = DType::f64, .tokens = 12});
  fill(network);
  network.loss(batch);
  EXPECT_GT(network.balance_loss(), 2 * 1.001);
  // A router of zeros gives all the same softmax: whoever is chosen, the sum is that of the choices' shares.
  for (const LayerPlaces& layer : network.layout().layers) {
    const Parameter& router = network.layout().at(*layer.router);
    for (std::int64_t i = 0; i < router.count(); ++i)
      store_element(DType::f64, network.parameters().data, router.offset + i, 0);
  }
  network.loss(batch);
  EXPECT_NEAR(network.balance_loss(), 2, 1e-12);
}

TEST(TrainNetwork, ExpertsHaveTheSameBitsForAnyNumberOfThreads) {
  const ModelConfig config = tiny("moe");
  const TrainingBatch batch = batch_of(config, {50, 1, 60, 30});
  const int before = threads();
  std::vector<double> expected;
  for (const int count : {1, 2, 3}) {
    set_threads(count);
    Network network(config, {.tokens = 141, .balance = 0.1});
    fill(network);
    network.loss_and_gradients(batch, 1, false);
    std::vector<double> gradients;
    for (std::int64_t i = 0; i < network.layout().count(); ++i) gradients.push_back(gradient_at(network, i));
    if (expected.empty()) expected = gradients;
    EXPECT_EQ(gradients, expected) << count;
  }
  set_threads(before);
}

TEST(TrainNetwork, BackwardWantsAForwardBefore) {
  const ModelConfig config = tiny("llama");
  const TrainingBatch batch = batch_of(config, {5, 1, 6}), other = batch_of(config, {4});
  Network network(config, {.tokens = 12});
  EXPECT_THROW(network.backward(batch, 1, false), InvalidArgument);
  network.forward(batch, 0, true);
  EXPECT_THROW(network.backward(other, 1, false), InvalidArgument);
  EXPECT_THROW(network.backward(batch, std::vector<double>(11), false), InvalidArgument);
  network.backward(batch, 1, false);
  EXPECT_THROW(network.backward(batch, 1, false), InvalidArgument);
}

TEST_P(Family, RecomputingGivesTheSameBits) {
  const ModelConfig config = tiny(GetParam());
  const TrainingBatch batch = batch_of(config, {5, 1, 6});
  Network kept(config, {.compute = DType::f32, .tokens = 12}),
      again(config, {.compute = DType::f32, .tokens = 12, .recompute = true});
  fill(kept);
  fill(again);
  EXPECT_EQ(kept.loss_and_gradients(batch, 1, false), again.loss_and_gradients(batch, 1, false));
  for (std::int64_t i = 0; i < kept.layout().count(); ++i) ASSERT_EQ(gradient_at(kept, i), gradient_at(again, i)) << i;
}

TEST_P(Family, GradientsOfBatchesAddUp) {
  const ModelConfig config = tiny(GetParam());
  Network network(config, {.compute = DType::f64, .tokens = 12});
  fill(network);
  const TrainingBatch one = batch_of(config, {5, 1, 6}), two = batch_of(config, {3, 7});
  const std::int64_t count = network.layout().count();
  std::vector<double> sums(static_cast<std::size_t>(count));
  for (const TrainingBatch* batch : {&one, &two}) {
    network.loss_and_gradients(*batch, 0.5, false);
    for (std::int64_t i = 0; i < count; ++i) sums[static_cast<std::size_t>(i)] += gradient_at(network, i);
  }
  network.loss_and_gradients(one, 0.5, false);
  network.loss_and_gradients(two, 0.5, true);
  for (std::int64_t i = 0; i < count; ++i)
    ASSERT_NEAR(gradient_at(network, i), sums[static_cast<std::size_t>(i)], 1e-12) << i;
}

// How far bf16 may take a loss and a gradient. What goes from one operation to the next is rounded: R times on the
// way through a layer and back, weights included. The errors are relative ones of at most u each and independent, so
// they add in squares: u * sqrt(R * layers), times what a layer makes of a relative error of its input, which for these
// weights is about one. Counted: norms, q k v (with their norm and rotation), attention, output, norm, wide, active,
// down; the five matrices; the same number of gradients: 26, and 6 more for experts' weighing and sums or QK-norm.
double rounding_bound(const ModelConfig& c, DType compute) {
  if (compute == DType::f32) return 1e-5;  // sums of products are rounded at every step
  constexpr double u = 0x1p-8;
  const double roundings = 26 + (c.experts.count > 0 ? 6 : 0) + (c.qk_norm ? 6 : 0);
  return u * std::sqrt(roundings * static_cast<double>(c.layers));
}

TEST_P(Family, RoundedComputingIsNearTheExactGradients) {
  const ModelConfig config = tiny(GetParam());
  const TrainingBatch batch = batch_of(config, {5, 1, 6});
  Network exact(config, {.compute = DType::f64, .tokens = 12, .balance = 0.1});
  fill(exact);
  const double loss = exact.loss_and_gradients(batch, 1, false);
  for (const DType compute : {DType::f32, DType::bf16}) {
    Network network(config, {.compute = compute, .tokens = 12, .balance = 0.1});
    fill(network);
    const double bound = rounding_bound(config, compute), got = network.loss_and_gradients(batch, 1, false);
    double squares = 0, differences = 0;
    for (std::int64_t i = 0; i < exact.layout().count(); ++i) {
      squares += gradient_at(exact, i) * gradient_at(exact, i);
      differences += std::pow(gradient_at(exact, i) - gradient_at(network, i), 2);
    }
    EXPECT_NEAR(got, loss, bound * loss) << name(compute);
    EXPECT_LT(std::sqrt(differences / squares), bound) << name(compute);
  }
}

INSTANTIATE_TEST_SUITE_P(TrainNetwork, Family, testing::ValuesIn(all_families()), family_name);

}  // namespace
}  // namespace attend::llm
