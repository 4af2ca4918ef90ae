// Preference optimisation: where it starts, its gradient through a network, and that it learns the preference.
#include "llm/train/dpo.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "attend/error.hpp"
#include "llm/train/adamw.hpp"
#include "train_tiny.hpp"

namespace attend::llm {
namespace {

constexpr double kBeta = 0.4;

struct Pairs {
  TrainingBatch batch;
  Network policy, reference;

  explicit Pairs(DType compute)
      : batch(batch_of(tiny("llama"), {4, 5, 3, 3})),
        policy(tiny("llama"), {.compute = compute, .tokens = 15}),
        reference(tiny("llama"), {.compute = compute, .tokens = 15, .frozen = true}) {
    fill(policy);
    fill(reference);
    reference.loss(batch);
  }
  DpoLoss loss(std::span<double> factors, double factor = 1) {
    policy.forward(batch, 0, true);
    return dpo_loss(batch, document_log_probabilities(batch, policy.losses()),
                    document_log_probabilities(batch, reference.losses()), kBeta, factor, factors);
  }
};

TEST(TrainDpo, StartsAtTheLogarithmOfTwo) {
  Pairs pairs(DType::f32);
  std::vector<double> factors(15);
  const DpoLoss loss = pairs.loss(factors);
  EXPECT_EQ(loss.pairs, 2);
  EXPECT_EQ(loss.margin, 0);
  EXPECT_NEAR(loss.loss, 2 * std::log(2.0), 1e-12);
  for (std::size_t t = 0; t < 15; ++t) EXPECT_EQ(factors[t], (t < 4 || (t >= 9 && t < 12) ? 0.5 : -0.5) * kBeta) << t;
}

TEST(TrainDpo, GradientsAreCentralDifferences) {
  Pairs pairs(DType::f64);
  const MutableView values = pairs.policy.parameters();
  for (const Parameter& p : pairs.policy.layout().all())  // away from the reference
    for (std::int64_t i = p.offset; i < p.offset + p.count(); ++i)
      store_element(DType::f64, values.data, i,
                    load_element(DType::f64, values.data, i) + 0.05 * normal(3, static_cast<std::uint64_t>(i)));
  constexpr double kFactor = 0.7;
  std::vector<double> factors(15), ignored(15);
  EXPECT_GT(std::abs(pairs.loss(factors, kFactor).margin), 1e-3);
  pairs.policy.backward(pairs.batch, factors, false);
  expect_central_differences(
      pairs.policy.layout(), values, pairs.policy.gradients(), [&] { return kFactor * pairs.loss(ignored).loss; },
      [](const Parameter& p, double largest) { EXPECT_GT(largest, 1e-6) << p.name; });
}

TEST(TrainDpo, TheMarginGrows) {
  Pairs pairs(DType::f32);
  Moments moments(pairs.policy.layout());
  std::vector<double> factors(15);
  double margin = 0, loss = 2 * std::log(2.0);
  for (std::int64_t step = 1; step <= 20; ++step) {
    pairs.loss(factors, 0.5);
    pairs.policy.backward(pairs.batch, factors, false);
    adamw_step(pairs.policy.layout(), {.decay = 0}, 1e-3, step, pairs.policy.gradients(), 1, moments,
               pairs.policy.parameters());
    pairs.policy.changed();
    const DpoLoss now = pairs.loss(factors);
    EXPECT_GT(now.margin, margin) << step;
    EXPECT_LT(now.loss, loss) << step;
    margin = now.margin, loss = now.loss;
  }
  EXPECT_EQ(pairs.loss(factors).preferred, 2);
}

TEST(TrainDpo, LargeMarginsOverflowNothing) {
  const TrainingBatch batch = batch_of(tiny("llama"), {1, 1});
  double factors[2] = {};
  for (const double margin : {-1e6, 1e6}) {
    const double policy[] = {margin, 0}, reference[] = {0, 0};
    const DpoLoss loss = dpo_loss(batch, policy, reference, 1, 1, factors);
    EXPECT_EQ(loss.loss, margin < 0 ? 1e6 : 0);
    EXPECT_EQ(factors[0], margin < 0 ? 1 : 0);
  }
}

TEST(TrainDpo, WantsPairs) {
  const TrainingBatch batch = batch_of(tiny("llama"), {1, 1, 1});
  double factors[3] = {};
  const double sums[] = {0, 0, 0};
  EXPECT_THROW(dpo_loss(batch, sums, sums, 1, 1, factors), InvalidArgument);
}

}  // namespace
}  // namespace attend::llm
