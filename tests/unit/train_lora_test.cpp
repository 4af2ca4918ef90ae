// LoRA: it touches its own parameters alone, merged it is what it was trained as, and its gradients are those of that.
#include "llm/train/lora.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "attend/error.hpp"
#include "llm/train/adamw.hpp"
#include "train_tiny.hpp"

namespace attend::llm {
namespace {

double at(const View& x, std::int64_t i) {
  return load_element(x.dtype, x.data, i);
}

// Adapters of some size, B too.
void fill(const LoraAdapters& lora, const MutableView& values) {
  for (std::int64_t i = 0; i < lora.layout().count(); ++i)
    store_element(values.dtype, values.data, i, 0.3 * normal(21, static_cast<std::uint64_t>(i)));
}

TEST(TrainLora, BeginsAsTheModelItIsBeside) {
  const ModelConfig config = tiny("llama");
  Network network(config, {.tokens = 12});
  fill(network);
  const Tensor base = [&] {
    Tensor copy(DType::f32, network.parameters().shape);
    for (std::int64_t i = 0; i < copy.size(); ++i)
      copy.data<float>()[i] = static_cast<float>(at(network.parameters(), i));
    return copy;
  }();
  const LoraAdapters lora(network.layout(), {.rank = 2});
  Tensor adapters(DType::f32, {1, 1, 1, lora.layout().count()});
  initialise(lora.layout(), 5, adapters);
  lora.merge_into(base, adapters, network.parameters());
  for (std::int64_t i = 0; i < base.size(); ++i) ASSERT_EQ(at(network.parameters(), i), at(base, i)) << i;
  EXPECT_EQ(lora.layout().all().size(), 2U * 4 * 2);
  EXPECT_EQ(lora.layout().all()[0].name, "model.layers.0.self_attn.q_proj.lora_A.weight");
  EXPECT_EQ(lora.layout().all()[1].name, "model.layers.0.self_attn.q_proj.lora_B.weight");
  EXPECT_NE(at(adapters, 0), 0);
}

TEST(TrainLora, ChangesItsOwnParametersAlone) {
  for (const bool feed_forward : {false, true}) {
    const ModelConfig config = tiny("moe");
    const TrainingBatch batch = batch_of(config, {5, 1, 6});
    Network network(config, {.tokens = 12, .balance = 0.1});
    fill(network);
    Tensor base(DType::f32, network.parameters().shape);
    for (std::int64_t i = 0; i < base.size(); ++i)
      base.data<float>()[i] = static_cast<float>(at(network.parameters(), i));
    const LoraAdapters lora(network.layout(), {.rank = 3, .alpha = 6, .feed_forward = feed_forward});
    Tensor adapters(DType::f32, {1, 1, 1, lora.layout().count()}), gradients(DType::f32, adapters.shape());
    initialise(lora.layout(), 5, adapters);
    Moments moments(lora.layout());
    const double before = network.loss(batch);
    for (std::int64_t step = 1; step <= 5; ++step) {
      lora.merge_into(base, adapters, network.parameters());
      network.changed();
      network.loss_and_gradients(batch, 1.0 / 12, false);
      lora.gradients(adapters, network.gradients(), gradients);
      adamw_step(lora.layout(), {}, 1e-2, step, gradients, 1, moments, adapters);
    }
    lora.merge_into(base, adapters, network.parameters());
    network.changed();
    EXPECT_LT(network.loss(batch), before);
    for (const Parameter& p : network.layout().all()) {
      const bool of_attention =
          p.name.find("_proj.weight") != std::string::npos && p.name.find("self_attn") != std::string::npos;
      const bool of_feed_forward =
          p.name.find("_proj.weight") != std::string::npos && p.name.find("mlp") != std::string::npos;
      bool changed = false;
      for (std::int64_t i = p.offset; i < p.offset + p.count(); ++i)
        changed = changed || at(network.parameters(), i) != at(base, i);
      EXPECT_EQ(changed, of_attention || (feed_forward && of_feed_forward)) << p.name;
    }
  }
}

TEST(TrainLora, MergedIsTheBaseAndTheAdapterBeside) {
  const ModelConfig config = tiny("llama");
  const ParameterLayout model(config);
  const LoraAdapters lora(model, {.rank = 2, .alpha = 3});
  Tensor base(DType::f64, {1, 1, 1, model.count()}), merged(DType::f64, base.shape()),
      adapters(DType::f64, {1, 1, 1, lora.layout().count()});
  initialise(model, 3, base);
  fill(lora, adapters);
  lora.merge_into(base, adapters, merged);
  // W' x against W x + alpha / rank B (A x), for one matrix that is not square.
  const Parameter &w = *model.find("model.layers.1.self_attn.q_proj.weight"),
                  &a = *lora.layout().find("model.layers.1.self_attn.q_proj.lora_A.weight"),
                  &b = *lora.layout().find("model.layers.1.self_attn.q_proj.lora_B.weight");
  ASSERT_NE(w.rows, w.cols);
  std::vector<double> x(static_cast<std::size_t>(w.cols)), low(2);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = normal(8, i);
  for (std::int64_t r = 0; r < 2; ++r)
    for (std::int64_t i = 0; i < w.cols; ++i)
      low[static_cast<std::size_t>(r)] += at(adapters, a.offset + r * w.cols + i) * x[static_cast<std::size_t>(i)];
  for (std::int64_t o = 0; o < w.rows; ++o) {
    double one = 0, beside = 0;
    for (std::int64_t i = 0; i < w.cols; ++i) {
      one += at(merged, w.offset + o * w.cols + i) * x[static_cast<std::size_t>(i)];
      beside += at(base, w.offset + o * w.cols + i) * x[static_cast<std::size_t>(i)];
    }
    for (std::int64_t r = 0; r < 2; ++r)
      beside += 1.5 * at(adapters, b.offset + o * 2 + r) * low[static_cast<std::size_t>(r)];
    EXPECT_NEAR(one, beside, 1e-12);
  }
}

TEST(TrainLora, GradientsAreCentralDifferences) {
  const ModelConfig config = tiny("qwen3");
  const TrainingBatch batch = batch_of(config, {5, 1, 6});
  Network network(config, {.compute = DType::f64, .tokens = 12});
  fill(network);
  Tensor base(DType::f64, network.parameters().shape);
  for (std::int64_t i = 0; i < base.size(); ++i) base.data<double>()[i] = at(network.parameters(), i);
  const LoraAdapters lora(network.layout(), {.rank = 2, .alpha = 3, .feed_forward = true});
  Tensor adapters(DType::f64, {1, 1, 1, lora.layout().count()}), gradients(DType::f64, adapters.shape());
  fill(lora, adapters);
  lora.merge_into(base, adapters, network.parameters());
  network.loss_and_gradients(batch, 1, false);
  lora.gradients(adapters, network.gradients(), gradients);
  expect_central_differences(
      lora.layout(), adapters, gradients,
      [&] {
        lora.merge_into(base, adapters, network.parameters());
        return network.loss(batch);
      },
      [](const Parameter& p, double largest) { EXPECT_GT(largest, 1e-6) << p.name; });
}

TEST(TrainLora, ARankIsAboveZero) {
  EXPECT_THROW(LoraAdapters(ParameterLayout(tiny("llama")), {.rank = 0}), InvalidArgument);
}

}  // namespace
}  // namespace attend::llm
