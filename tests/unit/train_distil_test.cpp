// Distillation: its loss by the formula, its gradient by central differences, and the same in chunks of rows.
#include "llm/train/distil.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "attend/error.hpp"
#include "attend/linear.hpp"
#include "train_tiny.hpp"

namespace attend::llm {
namespace {

// Of another family and width, with the same vocabulary.
ModelConfig teacher_config() {
  ModelConfig c = tiny("qwen3");
  c.hidden = 10;
  return c;
}

struct Pair {
  TrainingBatch batch;
  Network student, teacher;
  explicit Pair(DType compute)
      : batch(batch_of(tiny("llama"), {5, 1, 6})),
        student(tiny("llama"), {.compute = compute, .tokens = 12}),
        teacher(teacher_config(), {.compute = compute, .tokens = 12, .frozen = true}) {
    fill(student);
    fill(teacher);
  }
};

// softmax(logits / temperature) of every row, from the definition.
std::vector<std::vector<double>> softmaxes(Network& network, const TrainingBatch& batch, double temperature) {
  const View hidden = network.run(batch, 0, false), head = network.head();
  std::vector<std::vector<double>> rows;
  for (std::int64_t t = 0; t < hidden.length(); ++t) {
    std::vector<double>& p = rows.emplace_back();
    double sum = 0;
    for (std::int64_t v = 0; v < head.length(); ++v) {
      double z = 0;
      for (std::int64_t i = 0; i < head.dim(); ++i) z += load(hidden, 0, 0, t, i) * load(head, 0, 0, v, i);
      sum += p.emplace_back(std::exp(z / temperature));
    }
    for (double& x : p) x /= sum;
  }
  return rows;
}

TEST(TrainDistil, LossIsTheFormula) {
  for (const DType compute : {DType::f64, DType::f32}) {
    Pair pair(compute);
    const DistilOptions options{.alpha = 0.3, .temperature = 1.7};
    const auto plain = softmaxes(pair.student, pair.batch, 1), q = softmaxes(pair.student, pair.batch, 1.7),
               p = softmaxes(pair.teacher, pair.batch, 1.7);
    double hard = 0, soft = 0;
    for (std::size_t t = 0; t < 12; ++t) {
      if (pair.batch.targets[t] == kIgnored) continue;
      hard -= std::log(plain[t][static_cast<std::size_t>(pair.batch.targets[t])]);
      for (std::size_t v = 0; v < p[t].size(); ++v) soft += 1.7 * 1.7 * p[t][v] * std::log(p[t][v] / q[t][v]);
    }
    const DistilLoss loss = Distiller(pair.student, pair.teacher, options).loss(pair.batch);
    const double bound = compute == DType::f64 ? 1e-11 : 2e-5;
    EXPECT_NEAR(loss.cross_entropy, hard, bound);
    EXPECT_NEAR(loss.divergence, soft, bound);
    EXPECT_NEAR(loss.total, 0.3 * hard + 0.7 * soft, bound);
    EXPECT_GT(soft, 0.1);
  }
}

TEST(TrainDistil, GradientsAreCentralDifferences) {
  Pair pair(DType::f64);
  constexpr double kFactor = 0.7;
  Distiller distiller(pair.student, pair.teacher, {.alpha = 0.3, .temperature = 1.7});
  const DistilLoss loss = distiller.loss_and_gradients(pair.batch, kFactor, false);
  EXPECT_EQ(loss.total, distiller.loss(pair.batch).total);
  expect_central_differences(
      pair.student.layout(), pair.student.parameters(), pair.student.gradients(),
      [&] { return kFactor * distiller.loss(pair.batch).total; },
      [](const Parameter& p, double largest) { EXPECT_GT(largest, 1e-6) << p.name; });
}

TEST(TrainDistil, TheCrossEntropyAloneIsThatOfTraining) {
  Pair pair(DType::f64);
  Distiller distiller(pair.student, pair.teacher, {.alpha = 1, .temperature = 2});
  const std::int64_t count = pair.student.layout().count();
  const double loss = pair.student.loss_and_gradients(pair.batch, 1, false);
  std::vector<double> gradients;
  for (std::int64_t i = 0; i < count; ++i) gradients.push_back(gradient_at(pair.student, i));
  EXPECT_NEAR(distiller.loss_and_gradients(pair.batch, 1, true).total, loss, 1e-11);  // added: twice
  for (std::int64_t i = 0; i < count; ++i)
    ASSERT_NEAR(gradient_at(pair.student, i), 2 * gradients[static_cast<std::size_t>(i)], 1e-11);
}

// More rows than a chunk holds, where the vocabulary is large: the same sums as of parts.
TEST(TrainDistil, ChunksOfRowsAddUp) {
  ModelConfig config = tiny("llama");
  config.vocabulary = 60000, config.layers = 1;
  const TrainingBatch batch = batch_of(config, {50});
  Network student(config, {.tokens = 50}), teacher(config, {.tokens = 50, .frozen = true});
  fill(student);
  initialise(teacher.layout(), 4, teacher.parameters());
  Distiller distiller(student, teacher, {});
  EXPECT_LT(distiller.bytes(), 44 << 20);
  const DistilLoss whole = distiller.loss_and_gradients(batch, 1, false);
  std::vector<double> gradients;
  const std::int64_t place = student.layout().at(student.layout().embedding).offset;
  for (std::int64_t i = 0; i < 12000; ++i) gradients.push_back(gradient_at(student, place + i));
  double sum = 0;
  for (const bool front : {true, false}) {
    TrainingBatch half = batch;
    for (std::size_t t = 0; t < 50; ++t)
      if ((t < 20) != front) half.targets[t] = kIgnored;
    sum += distiller.loss_and_gradients(half, 1, !front).total;
  }
  EXPECT_NEAR(sum, whole.total, 1e-9 * whole.total);
  for (std::int64_t i = 0; i < 12000; ++i)
    ASSERT_NEAR(gradient_at(student, place + i), gradients[static_cast<std::size_t>(i)], 1e-4) << i;
}

TEST(TrainDistil, HalfTypesAreNear) {
  Pair exact(DType::f32), half(DType::bf16);
  const DistilOptions options{};
  half.student.changed();
  const DistilLoss expected =
                       Distiller(exact.student, exact.teacher, options).loss_and_gradients(exact.batch, 1, false),
                   got = Distiller(half.student, half.teacher, options).loss_and_gradients(half.batch, 1, false);
  EXPECT_NEAR(got.total, expected.total, 0.05 * expected.total);
  double squares = 0, differences = 0;
  for (std::int64_t i = 0; i < exact.student.layout().count(); ++i) {
    squares += std::pow(gradient_at(exact.student, i), 2);
    differences += std::pow(gradient_at(exact.student, i) - gradient_at(half.student, i), 2);
  }
  EXPECT_LT(std::sqrt(differences / squares), 0.1);
}

TEST(TrainDistil, WantsOneVocabulary) {
  ModelConfig other = tiny("llama");
  other.vocabulary = 24;
  Network student(tiny("llama"), {.tokens = 4}), teacher(other, {.tokens = 4, .frozen = true});
  EXPECT_THROW(Distiller(student, teacher, {}), InvalidArgument);
  EXPECT_THROW(Distiller(student, student, {.temperature = 0}), InvalidArgument);
  EXPECT_THROW(Distiller(student, student, {.alpha = 1.5}), InvalidArgument);
}

}  // namespace
}  // namespace attend::llm
