// Every family that the library runs trains end to end: loaded, trained for two steps, written, loaded again.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "golden_models.hpp"
#include "llm/train/adamw.hpp"
#include "llm/train/trained_model.hpp"
#include "train_tiny.hpp"

namespace attend::llm::test {
namespace {

class TrainedFamily : public testing::TestWithParam<const char*> {};

// Of every token, from the runtime's logits in double.
std::vector<double> runtime_losses(const fs::path& folder, const TrainingBatch& batch) {
  Transformer model{ModelFiles(folder)};
  const std::int64_t V = model.config().vocabulary;
  std::vector<std::int64_t> lengths;
  for (std::size_t d = 0; d + 1 < batch.starts.size(); ++d) lengths.push_back(batch.starts[d + 1] - batch.starts[d]);
  const std::vector<Token> tokens(batch.tokens.begin(), batch.tokens.end());
  const View hidden = model.encode(tokens, lengths);
  std::vector<float> logits(tokens.size() * static_cast<std::size_t>(V));
  model.logits(hidden, view_of(logits.data(), {1, 1, std::ssize(tokens), V}));
  std::vector<double> losses;
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    const float* z = logits.data() + static_cast<std::int64_t>(t) * V;
    double sum = 0;
    for (std::int64_t v = 0; v < V; ++v) sum += std::exp(static_cast<double>(z[v]));
    losses.push_back(batch.targets[t] == kIgnored ? 0 : std::log(sum) - static_cast<double>(z[batch.targets[t]]));
  }
  return losses;
}

void expect_same(const Network& network, const std::vector<double>& expected) {
  for (std::size_t t = 0; t < expected.size(); ++t)
    EXPECT_NEAR(load_element(DType::f32, network.losses().data, static_cast<std::int64_t>(t)), expected[t],
                1e-4 * std::max(1.0, expected[t]))
        << t;
}

std::vector<std::string> names_of(const ModelFiles& files) {
  std::vector<std::string> names;
  for (const StoredTensor& t : files.tensors()) names.push_back(t.name);
  std::sort(names.begin(), names.end());
  return names;
}

TEST_P(TrainedFamily, RunsAsItWasTrained) {
  const GoldenModel golden(GetParam());
  write_text(golden.path() / "tokenizer.json", "{}");
  const ModelFiles files(golden.path());
  const TrainingBatch batch = batch_of(files.config(), {7, 1, 9});
  Network network(files.config(), {.tokens = 17});
  load_parameters(files, network.layout(), network.parameters());
  network.changed();
  network.loss(batch);
  expect_same(network, runtime_losses(golden.path(), batch));

  double first = 0, last = 0;
  Moments moments(network.layout());
  for (const std::int64_t step : {1, 2}) {
    last = network.loss_and_gradients(batch, 1.0 / 17, false);
    if (step == 1) first = last;
    adamw_step(network.layout(), {}, 1e-3, step, network.gradients(), 1, moments, network.parameters());
    network.changed();
  }
  EXPECT_LT(last, first);
  EXPECT_LT(network.loss(batch), last);
  const TempFolder folder;
  const fs::path written = folder.path() / "model";
  write_trained(written, files.config(), network.layout(), network.parameters(), golden.path());
  expect_same(network, runtime_losses(written, batch));

  const ModelFiles again(written);
  const std::string family = files.config().family;
  if (family.starts_with("minimind")) {
    EXPECT_TRUE(again.naming().embedding == kLlama.embedding);
  } else {
    EXPECT_EQ(again.config().family, family);
    EXPECT_EQ(names_of(again), names_of(files));
  }
  EXPECT_TRUE(again.unused().empty());
}

INSTANTIATE_TEST_SUITE_P(All, TrainedFamily,
                         testing::Values("llama", "llama3", "linear", "yarn", "mistral", "llama_bias", "qwen2", "qwen3",
                                         "qwen3_moe", "gpt2", "bert", "minimind1", "minimind1_moe", "minimind2",
                                         "minimind2_moe", "minimind3", "minimind3_moe"),
                         [](const auto& model) { return std::string(model.param); });

// The first generation becomes a Llama, its heads rotated as Transformers rotates them.
TEST(TrainedFamilies, MiniMindV1IsWrittenAsALlama) {
  const GoldenModel golden("minimind1");
  write_text(golden.path() / "tokenizer.json", "{}");
  const ModelFiles files(golden.path());
  ASSERT_EQ(files.config().rope_style, RopeStyle::interleaved);
  const ParameterLayout layout(files.config());
  Tensor parameters(DType::f32, {1, 1, 1, layout.count()});
  load_parameters(files, layout, parameters.view());
  const TempFolder folder;
  write_trained(folder.path() / "model", files.config(), layout, parameters.view(), golden.path());
  const ModelFiles again(folder.path() / "model");
  EXPECT_EQ(again.config().family, "llama");
  EXPECT_EQ(again.config().rope_style, RopeStyle::half_split);
}

}  // namespace
}  // namespace attend::llm::test
