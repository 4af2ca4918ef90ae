// Parts of the transformer that no golden family has: sinusoidal positions, and sinks that take weight.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "golden_models.hpp"

namespace attend::llm::test {
namespace {

std::vector<float> logits_of(const GoldenModel& golden) {
  Transformer model = golden.load();
  return run_alone(model, golden_tokens(model, 40), 40);
}

void set_positions(const GoldenModel& golden, const std::string& kind) {
  std::string config = read_text(golden.path() / "config.json");
  const std::size_t old = config.find(", \"position_embedding_type\"");
  if (old != std::string::npos) config.resize(old);
  config.resize(config.find_last_not_of("}\n ") + 1);
  config += ", \"position_embedding_type\": \"" + kind + "\"}";
  write_text(golden.path() / "config.json", config);
}

void add_tensor(const GoldenModel& golden, const std::string& name, std::vector<std::int64_t> shape,
                const std::vector<float>& values) {
  golden.change_weights([&](std::vector<io::StoredTensor>& tensors) {
    tensors.push_back({name, "F32", std::move(shape), std::as_bytes(std::span(values))});
  });
}

TEST(ModelParts, SinusoidalPositionsAreTheTableOfThePaper) {
  const GoldenModel golden("llama");
  const ModelConfig config = golden.load().config();
  std::vector<float> table;
  for (std::int64_t p = 0; p < config.context; ++p)
    for (std::int64_t j = 0; j < config.hidden; ++j) {
      const double pair = static_cast<double>(j - j % 2) / static_cast<double>(config.hidden);
      const double angle = static_cast<double>(p) / std::pow(10000.0, pair);
      table.push_back(static_cast<float>(j % 2 == 0 ? std::sin(angle) : std::cos(angle)));
    }
  const std::vector<float> rotated = logits_of(golden);
  add_tensor(golden, "model.embed_positions.weight", {config.context, config.hidden}, table);
  set_positions(golden, "learned");
  const std::vector<float> learned = logits_of(golden);
  set_positions(golden, "sinusoidal");
  EXPECT_LE(relative_error(logits_of(golden), learned), 1e-6);
  EXPECT_GT(relative_error(rotated, learned), 1e-2);
  set_positions(golden, "none");
  EXPECT_GT(relative_error(logits_of(golden), learned), 1e-2);
}

TEST(ModelParts, SinksTakeTheWeightTheyAreGiven) {
  const auto with_sinks = [](float logit) {
    const GoldenModel golden("llama");
    const ModelConfig config = golden.load().config();
    for (std::int64_t n = 0; n < config.layers; ++n)
      add_tensor(golden, "model.layers." + std::to_string(n) + ".self_attn.sinks", {config.heads},
                 std::vector<float>(static_cast<std::size_t>(config.heads), logit));
    EXPECT_TRUE(golden.load().config().sinks);
    return logits_of(golden);
  };
  const GoldenModel plain("llama"), blind("llama");
  blind.change_weights([](std::vector<io::StoredTensor>& tensors) {
    static const std::vector<std::byte> zeros(std::size_t{1} << 16);
    for (io::StoredTensor& t : tensors)
      if (t.name.ends_with("o_proj.weight")) t.data = std::span(zeros).first(t.data.size());
  });
  EXPECT_LE(relative_error(with_sinks(-1e4F), logits_of(plain)), 1e-6);
  EXPECT_LE(relative_error(with_sinks(60.0F), logits_of(blind)), 1e-6);  // all of it: attention adds nothing
  EXPECT_GT(relative_error(with_sinks(1.0F), logits_of(plain)), 1e-3);
}

}  // namespace
}  // namespace attend::llm::test
