// MiniMind's .pth without a config.json: each generation is told by names and shapes, and what is none of them is
// refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "golden_models.hpp"
#include "pth_files.hpp"

namespace attend::llm::test {
namespace {

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

struct Shape {
  bool old_names = false;
  std::int64_t vocabulary = 6400, hidden = 64, layers = 2, q = 64, k = 16, width = 192, experts = 0, shared = 0;
  std::int64_t norm_dim = 0;  // of q_norm; 0: none
  bool head = true, tied = true;
};

// A state dict of this shape, with random numbers.
class StateDict {
 public:
  explicit StateDict(const Shape& s) {
    const bool old = s.old_names;
    const std::string top = old ? "" : "model.";
    add(old ? "tok_embeddings.weight" : "model.embed_tokens.weight", {s.vocabulary, s.hidden});
    for (std::int64_t n = 0; n < s.layers; ++n) {
      const std::string layer = top + "layers." + std::to_string(n) + ".";
      const auto attention = [&](const char* part) {
        return layer + (old ? std::string("attention.w") + part : std::string("self_attn.") + part + "_proj") +
               ".weight";
      };
      add(layer + (old ? "attention_norm" : "input_layernorm") + ".weight", {s.hidden});
      add(layer + (old ? "ffn_norm" : "post_attention_layernorm") + ".weight", {s.hidden});
      add(attention("q"), {s.q, s.hidden});
      add(attention("k"), {s.k, s.hidden});
      add(attention("v"), {s.k, s.hidden});
      add(attention("o"), {s.hidden, s.q});
      if (s.norm_dim > 0)
        for (const char* part : {"q", "k"}) add(layer + "self_attn." + part + "_norm.weight", {s.norm_dim});
      const std::string part = layer + (old ? "feed_forward." : "mlp.");
      if (s.experts == 0) {
        feed_forward(part, s);
        continue;
      }
      add(part + "gate.weight", {s.experts, s.hidden});
      for (std::int64_t e = 0; e < s.experts; ++e) feed_forward(part + "experts." + std::to_string(e) + ".", s);
      for (std::int64_t e = 0; e < s.shared; ++e)
        feed_forward(part + "shared_experts." + (old ? "" : std::to_string(e) + "."), s);
    }
    add(top + "norm.weight", {s.hidden});
    if (!s.head) return;
    add(old ? "output.weight" : "lm_head.weight", {s.vocabulary, s.hidden});
    if (s.tied) tensors.back().data = tensors.front().data;
  }

  void add(const std::string& name, const std::vector<std::int64_t>& shape) {
    std::size_t count = 1;
    for (const std::int64_t n : shape) count *= static_cast<std::size_t>(n);
    auto& numbers = numbers_.emplace_back(count);
    std::normal_distribution<float> normal(shape.size() == 1 ? 1.0F : 0.0F, 0.1F);
    for (float& x : numbers) x = normal(random_);
    tensors.push_back({name, "F32", shape, std::as_bytes(std::span(numbers))});
  }
  io::StoredTensor& operator[](const std::string& name) {
    return *std::find_if(tensors.begin(), tensors.end(), [&](const io::StoredTensor& t) { return t.name == name; });
  }
  fs::path write(const TempFolder& folder) const {
    const fs::path path = folder.path() / "full_sft_64.pth";
    write_text(path, pth_bytes(tensors));
    return path;
  }

  std::vector<io::StoredTensor> tensors;

 private:
  void feed_forward(const std::string& part, const Shape& s) {
    const bool old = s.old_names;
    add(part + (old ? "w1" : "gate_proj") + ".weight", {s.width, s.hidden});
    add(part + (old ? "w3" : "up_proj") + ".weight", {s.width, s.hidden});
    add(part + (old ? "w2" : "down_proj") + ".weight", {s.hidden, s.width});
  }

  std::mt19937 random_{7};
  std::deque<std::vector<float>> numbers_;
};

ModelConfig config_of(const Shape& shape) {
  const TempFolder folder;
  return ModelFiles(StateDict(shape).write(folder)).config();
}
std::string error_of(const StateDict& dict) {
  const TempFolder folder;
  try {
    const Transformer model{ModelFiles(dict.write(folder))};
  } catch (const io::FileError& error) {
    return error.what();
  }
  return "";
}
std::string error_of(const Shape& shape) {
  return error_of(StateDict(shape));
}

TEST(MiniMindPth, TheGenerationIsToldByNamesAndShapes) {
  struct Case {
    Shape shape;
    const char* family;
    std::int64_t heads, kv_heads, head_dim;
    double theta, eps;
    RopeStyle style;
  };
  const Case cases[] = {
      {{.old_names = true, .k = 32}, "minimind-v1", 16, 8, 4, 1e4, 1e-5, RopeStyle::interleaved},
      {{.old_names = true, .k = 16}, "minimind-v1", 8, 2, 8, 1e6, 1e-5, RopeStyle::interleaved},
      {{.k = 16}, "minimind", 8, 2, 8, 1e6, 1e-5, RopeStyle::half_split},
      {{.k = 32, .width = 256, .norm_dim = 8}, "minimind", 8, 4, 8, 1e6, 1e-6, RopeStyle::half_split},
      {{.q = 96, .k = 48, .width = 256, .norm_dim = 12}, "minimind", 8, 4, 12, 1e6, 1e-6, RopeStyle::half_split},
  };
  for (const Case& c : cases) {
    const ModelConfig got = config_of(c.shape);
    const std::string what = std::string(c.family) + " keys " + std::to_string(c.shape.k);
    EXPECT_EQ(got.family, c.family) << what;
    EXPECT_EQ(got.layers, 2) << what;
    EXPECT_EQ(got.heads, c.heads) << what;
    EXPECT_EQ(got.kv_heads, c.kv_heads) << what;
    EXPECT_EQ(got.head_dim, c.head_dim) << what;
    EXPECT_EQ(got.rope_theta, c.theta) << what;
    EXPECT_EQ(got.norm_eps, c.eps) << what;
    EXPECT_EQ(got.rope_style, c.style) << what;
    EXPECT_EQ(got.qk_norm, c.shape.norm_dim > 0) << what;
    EXPECT_TRUE(got.tied_embeddings) << what;
    EXPECT_EQ(error_of(c.shape), "") << what;
  }
  for (const bool old : {false, true}) {
    const ModelConfig moe = config_of({.old_names = old, .k = 16, .experts = 4, .shared = 1});
    EXPECT_TRUE(moe.experts.count == 4 && moe.experts.used == 2 && moe.experts.shared == 1 && moe.experts.normalised);
  }
  EXPECT_EQ(config_of({.k = 32, .width = 256, .experts = 4, .norm_dim = 8}).experts.used, 1);
}

TEST(MiniMindPth, AHeadOfItsOwnIsUsed) {
  for (const bool old : {false, true}) {
    EXPECT_TRUE(config_of({.old_names = old, .head = false}).tied_embeddings);
    const Shape untied{.old_names = old, .tied = false};
    EXPECT_FALSE(config_of(untied).tied_embeddings);
    const StateDict dict(untied);
    const TempFolder folder;
    Transformer model{ModelFiles(dict.write(folder))};
    std::vector<float> x(64), logits(6400);
    x[5] = 1;
    model.logits(view_of(static_cast<const float*>(x.data()), {1, 1, 1, 64}), view_of(logits.data(), {1, 1, 1, 6400}));
    std::vector<float> head(6400 * 64);
    std::memcpy(head.data(), dict.tensors.back().data.data(), dict.tensors.back().data.size());
    for (std::size_t token = 0; token < 6400; token += 97) EXPECT_EQ(logits[token], head[token * 64 + 5]) << token;
  }
  // The same written out twice is tied all the same.
  StateDict twice({});
  std::vector<std::byte> copy(twice.tensors.front().data.begin(), twice.tensors.front().data.end());
  twice.tensors.back().data = copy;
  const TempFolder folder;
  EXPECT_TRUE(ModelFiles(twice.write(folder)).config().tied_embeddings);
}

TEST(MiniMindPth, OthersAreRefusedWithWhatWouldTell) {
  const auto doubt = [](const Shape& shape, const std::string& words) {
    const std::string error = error_of(shape);
    EXPECT_TRUE(holds(error, words)) << error << "\nexpected " << words;
    EXPECT_TRUE(holds(error, "full_sft_64.pth: there is no config.json beside it")) << error;
    EXPECT_TRUE(holds(error, "expected the model's config.json beside the file, with model_type")) << error;
    EXPECT_TRUE(holds(error, shape.old_names ? "n_kv_heads" : "num_key_value_heads")) << error;
  };
  doubt({.vocabulary = 128, .k = 64}, "keys of width 64 beside a hidden size of 64, expected a quarter");  // Llama
  doubt({.k = 32}, "keys of width 32 beside a hidden size of 64, expected a quarter");
  doubt({.old_names = true, .k = 64}, "expected a half or a quarter");  // Meta's Llama, llama2.c
  doubt({.width = 224}, "feed-forward is 224 wide, expected 192");      // Llama 3's keys are a quarter, too
  doubt({.old_names = true, .width = 224}, "feed-forward is 224 wide");
  doubt({.k = 32, .width = 512, .norm_dim = 8}, "feed-forward is 512 wide, expected 256");  // Qwen 3
  doubt({.vocabulary = 128, .tied = false}, "it has 128 tokens and a head of its own");
  doubt({.q = 128}, "queries of width 128 and keys of width 16");
  StateDict biased({});
  biased.add("model.layers.0.self_attn.q_proj.bias", {64});
  EXPECT_TRUE(holds(error_of(biased), "its queries have a bias"));  // Qwen 2
  StateDict other({});
  other["model.embed_tokens.weight"].name = "wte.weight";
  EXPECT_TRUE(holds(error_of(other), "there is no tensor \"model.embed_tokens.weight\""));
}

TEST(MiniMindPth, AConfigBesideItSaysWhatShapesDoNot) {
  const TempFolder folder;
  const fs::path path = StateDict({.vocabulary = 128, .k = 64, .tied = false}).write(folder);
  write_text(folder.path() / "config.json", R"({"model_type": "llama", "vocab_size": 128, "hidden_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 192})");
  const ModelFiles files(path);
  EXPECT_EQ(files.config().family, "llama");
  EXPECT_EQ(files.config().heads, 4);
  const Transformer model(files);
}

TEST(MiniMindPth, LoraIsNotReadOver) {
  StateDict beside({});
  beside.add("model.layers.0.self_attn.q_proj.lora.A.weight", {8, 64});
  beside.add("model.layers.0.self_attn.q_proj.lora.B.weight", {64, 8});
  const std::string error = error_of(beside);
  EXPECT_TRUE(holds(error, "\"model.layers.0.self_attn.q_proj.lora.A.weight\" is of LoRA")) << error;
  EXPECT_TRUE(holds(error, "merged")) << error;
  StateDict alone({});
  alone.tensors.clear();
  alone.add("model.layers.0.self_attn.q_proj.lora.A.weight", {8, 64});
  EXPECT_TRUE(holds(error_of(alone), "holds LoRA weights alone"));
}

TEST(MiniMindPth, NamesMayCarryWhatTrainingPutBeforeThem) {
  for (const char* wrapper : {"_orig_mod.", "module."}) {
    StateDict dict({.old_names = true});
    for (io::StoredTensor& t : dict.tensors) t.name.insert(0, wrapper);
    EXPECT_EQ(error_of(dict), "") << wrapper;
  }
}

}  // namespace
}  // namespace attend::llm::test
