// Every choice of attention in training is the one that generates: the same losses on the same weights, the same
// config.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "golden_models.hpp"
#include "llm/model/export.hpp"
#include "llm/train/model_weights.hpp"
#include "llm/train/trained_model.hpp"
#include "train_tiny.hpp"

namespace attend::llm {
namespace {

using test::TempFolder;

class AttentionChoice : public testing::TestWithParam<std::string> {};

// The loss of every token as the loaded model has it, from its logits in double.
std::vector<double> losses_of(Transformer& model, const TrainingBatch& batch) {
  std::vector<double> losses;
  const std::int64_t V = model.config().vocabulary, H = model.config().hidden;
  for (std::size_t d = 0; d + 1 < batch.starts.size(); ++d) {
    const std::vector<Token> tokens(batch.tokens.begin() + batch.starts[d], batch.tokens.begin() + batch.starts[d + 1]);
    const auto rows = std::ssize(tokens);
    std::vector<float> logits;
    if (model.config().causal) {
      logits = test::run_alone(model, tokens, 2);
    } else {
      const std::int64_t lengths[] = {rows};
      const View hidden = model.encode(tokens, lengths);
      logits.resize(static_cast<std::size_t>(rows * V));
      model.logits(view_of(static_cast<const float*>(hidden.data), {1, 1, rows, H}),
                   view_of(logits.data(), {1, 1, rows, V}));
    }
    for (std::int64_t t = 0; t < rows; ++t) {
      const std::int64_t target = batch.targets[losses.size()];
      const float* z = logits.data() + t * V;
      double sum = 0;
      for (std::int64_t v = 0; v < V; ++v) sum += std::exp(static_cast<double>(z[v]));
      losses.push_back(target == kIgnored ? 0 : std::log(sum) - static_cast<double>(z[target]));
    }
  }
  return losses;
}

TEST_P(AttentionChoice, HasTheLossesOfTheModelThatGenerates) {
  const ModelConfig config = tiny(GetParam());
  const TrainingBatch batch = batch_of(config, {7, 1, 9});
  Network network(config, {.tokens = 17});
  fill(network);
  const TempFolder folder;
  write_model(folder.path(), config, network.layout(), network.parameters());
  Transformer model{ModelFiles(folder.path())};
  network.loss(batch);
  const std::vector<double> expected = losses_of(model, batch);
  for (std::int64_t t = 0; t < 17; ++t)
    EXPECT_NEAR(load_element(DType::f32, network.losses().data, t), expected[static_cast<std::size_t>(t)], 1e-4) << t;
}

TEST_P(AttentionChoice, ParametersComeBackFromTheFolder) {
  const ModelConfig config = tiny(GetParam());
  Network network(config, {.tokens = 4}), again(config, {.tokens = 4});
  fill(network);
  const TempFolder folder;
  write_model(folder.path(), config, network.layout(), network.parameters());
  load_parameters(ModelFiles(folder.path()), again.layout(), again.parameters());
  // What is written as a Llama comes back with q's and k's rows in Llama's order.
  const RopeStyle style = ModelFiles(folder.path()).config().rope_style;
  EXPECT_EQ(style == config.rope_style, !GetParam().starts_with("minimind1"));
  for (const Parameter& p : network.layout().all())
    for (std::int64_t r = 0; r < p.rows; ++r) {
      const bool norm = p.name.ends_with("q_norm.weight") || p.name.ends_with("k_norm.weight");
      const bool turns = p.name.ends_with("q_proj.weight") || p.name.ends_with("k_proj.weight");
      const std::int64_t from = turns ? row_in_style(config, style, r) : r;
      for (std::int64_t c = 0; c < p.cols; ++c)
        ASSERT_EQ(load_element(DType::f32, network.parameters().data,
                               p.offset + from * p.cols + (norm ? row_in_style(config, style, c) : c)),
                  load_element(DType::f32, again.parameters().data, p.offset + r * p.cols + c))
            << p.name;
    }
}

TEST_P(AttentionChoice, ComesBackFromItsConfig) {
  const ModelConfig c = tiny(GetParam());
  const ModelConfig again = config_from_json(io::parse_json(config_to_json(c, family_to_write(c)), "config"), "config");
  EXPECT_EQ(again.score_softcap, c.score_softcap);
  EXPECT_EQ(again.attention_scale, c.attention_scale);
  EXPECT_EQ(again.positions, c.positions);
  EXPECT_EQ(again.rope_style, c.rope_style);
  EXPECT_EQ(again.rotary(), c.rotary());
  EXPECT_EQ(again.rope_slowdown, c.rope_slowdown);
  EXPECT_EQ(again.token_types, c.token_types);
  EXPECT_EQ(again.embedding_norm, c.embedding_norm);
  EXPECT_EQ(again.qk_norm, c.qk_norm);
  EXPECT_EQ(again.sinks, c.sinks);
  EXPECT_EQ(again.window, c.window);
  EXPECT_EQ(again.windowed, c.windowed);
  EXPECT_EQ(again.kv_heads, c.kv_heads);
  EXPECT_EQ(again.norm, c.norm);
  EXPECT_EQ(again.norm_after, c.norm_after);
  EXPECT_EQ(again.norm_eps, c.norm_eps);
  EXPECT_EQ(again.causal, c.causal);
  EXPECT_EQ(again.gated, c.gated);
  EXPECT_EQ(again.activation, c.activation);
  EXPECT_EQ(again.tied_embeddings, c.tied_embeddings);
  EXPECT_EQ(again.experts.count, c.experts.count);
  EXPECT_EQ(again.experts.shared, c.experts.shared);
  EXPECT_EQ(again.experts.normalised, c.experts.count > 0 ? c.experts.normalised : again.experts.normalised);
}

INSTANTIATE_TEST_SUITE_P(TrainAttention, AttentionChoice, testing::ValuesIn(all_families()), family_name);

TEST(TrainAttention, EachChoiceIsAnotherModel) {
  std::vector<double> losses;
  for (const char* name : {"llama", "minimind1", "mistral", "alibi", "none", "sinusoidal", "softcap", "unscaled"}) {
    const ModelConfig config = tiny(name);
    Network network(config, {.compute = DType::f64, .tokens = 17});
    fill(network);  // the same numbers in each
    losses.push_back(network.loss(batch_of(config, {7, 1, 9})));
    for (std::size_t other = 0; other + 1 < losses.size(); ++other)
      EXPECT_GT(std::abs(losses[other] - losses.back()), 1e-3) << name << " and number " << other;
  }
}

TEST(TrainAttention, PlainShapesAreWrittenAsWhatTheyAre) {
  for (const auto& [name, family] : {std::pair{"llama", "llama"},
                                     {"qwen2", "qwen2"},
                                     {"qwen3", "qwen3"},
                                     {"mistral", "mistral"},
                                     {"minimind1", kOwnFamily},
                                     {"gpt-oss", kOwnFamily},
                                     {"gpt2", "gpt2"},
                                     {"bert", "bert"},
                                     {"bert-head", "bert"},
                                     {"encoder", kOwnFamily},
                                     {"alibi", kOwnFamily},
                                     {"softcap", kOwnFamily},
                                     {"unscaled", kOwnFamily},
                                     {"none", kOwnFamily}})
    EXPECT_EQ(family_to_write(tiny(name)), family) << name;
}

TEST(TrainAttention, ExportRefusesWhatOthersDoNotCompute) {
  for (const auto& [name, part] : {std::pair{"alibi", "ALiBi; those with RoPE can"},
                                   {"softcap", "soft-capped scores (attn_logit_softcapping) fit no family"},
                                   {"unscaled", "a scale of their own (attention_scale) fit no family"},
                                   {"gpt-oss", "attention sinks fit no family"}}) {
    const ModelConfig config = tiny(name);
    Network network(config, {.tokens = 1});
    fill(network);
    const TempFolder folder;
    write_model(folder.path(), config, network.layout(), network.parameters());
    const ModelFiles files(folder.path());
    for (const bool gguf : {true, false}) try {
        if (gguf)
          export_gguf(files, folder.path() / "out.gguf");
        else
          export_folder(files, folder.path() / "out");
        ADD_FAILURE() << name << " was written";
      } catch (const io::FileError& error) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      }
  }
}

}  // namespace
}  // namespace attend::llm
