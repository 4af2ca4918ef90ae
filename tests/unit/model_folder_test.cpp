// What a model's folder says beside config.json and safetensors: pytorch_model.bin, generation_config.json, the
// settings of Sentence Transformers; and tensors that nothing uses.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "golden_models.hpp"
#include "pth_files.hpp"

namespace attend::llm::test {
namespace {

std::string load_error(const fs::path& path) {
  try {
    const Transformer model{ModelFiles(path)};
  } catch (const io::FileError& error) {
    return error.what();
  }
  return "";
}
bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// --- pytorch_model.bin ---

TEST(BinFolder, GivesTheBitsOfSafetensors) {
  const GoldenModel golden("llama");
  Transformer before = golden.load();
  std::string whole, parts[2];
  golden.change_weights([&](std::vector<io::StoredTensor>& tensors) {
    whole = pth_bytes(tensors);
    const auto half = static_cast<std::ptrdiff_t>(tensors.size() / 2);
    parts[0] = pth_bytes(std::span(tensors).first(static_cast<std::size_t>(half)));
    parts[1] = pth_bytes(std::span(tensors).subspan(static_cast<std::size_t>(half)));
  });
  fs::remove(golden.path() / "model.safetensors");
  EXPECT_TRUE(holds(load_error(golden.path()), "nor is there a pytorch_model.bin"));
  const std::vector<Token> tokens = golden_tokens(before);
  const std::vector<float> expected = run_alone(before, tokens, 24);
  write_text(golden.path() / "pytorch_model.bin", whole);
  Transformer one = golden.load();
  EXPECT_EQ(run_alone(one, tokens, 24), expected);
  fs::remove(golden.path() / "pytorch_model.bin");
  write_text(golden.path() / "pytorch_model-1.bin", parts[0]);
  write_text(golden.path() / "pytorch_model-2.bin", parts[1]);
  write_text(
      golden.path() / "pytorch_model.bin.index.json",
      R"({"metadata": {"total_size": 1}, "weight_map": {"a": "pytorch_model-1.bin", "b": "pytorch_model-2.bin"}})");
  Transformer sharded = golden.load();
  EXPECT_EQ(run_alone(sharded, tokens, 24), expected);
  write_text(golden.path() / "pytorch_model.bin.index.json", R"({"weight_map": {"a": "../pytorch_model-1.bin"}})");
  EXPECT_TRUE(holds(load_error(golden.path()), "is not the name of a file in this folder"));
}

// --- generation_config.json ---

TEST(FolderSettings, GenerationConfigSaysWhatEndsAnAnswer) {
  using Ids = std::vector<std::int64_t>;
  const GoldenModel golden("llama");
  const auto eos = [&](const char* text) {
    write_text(golden.path() / "generation_config.json", text);
    return ModelFiles(golden.path()).config().eos;
  };
  EXPECT_EQ(eos(R"({"eos_token_id": [3, 60, 64]})"), (Ids{3, 60}));  // 64 is no token of this model
  EXPECT_EQ(eos(R"({"eos_token_id": 9})"), Ids{9});
  EXPECT_EQ(eos(R"({"temperature": 0.6})"), Ids{2});  // config.json's
  write_text(golden.path() / "generation_config.json", "[]");
  EXPECT_TRUE(holds(load_error(golden.path()), "generation_config.json: is an array, expected an object"));
}

TEST(FolderSettings, GenerationConfigRecommendsSampling) {
  const GoldenModel golden("llama");
  const auto sampling = [&](const char* text) {
    write_text(golden.path() / "generation_config.json", text);
    return ModelFiles(golden.path()).config().sampling;
  };
  const SamplingSettings all = sampling(
      R"({"do_sample": true, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0, "repetition_penalty": 1.1})");
  EXPECT_EQ(all.temperature, 0.6);
  EXPECT_EQ(all.top_p, 0.95);
  EXPECT_EQ(all.top_k, 20);
  EXPECT_EQ(all.min_p, 0);
  EXPECT_EQ(all.repetition_penalty, 1.1);
  const SamplingSettings none = sampling(R"({"eos_token_id": 3, "temperature": null, "do_sample": true})");
  EXPECT_FALSE(none.temperature || none.top_p || none.top_k || none.min_p || none.repetition_penalty);
  EXPECT_EQ(sampling(R"({"do_sample": false, "temperature": 0.6, "top_p": 0.9})").temperature, 0);
  EXPECT_EQ(sampling(R"({"do_sample": false})").temperature, 0);
  EXPECT_EQ(sampling(R"({"top_k": -1})").top_k, 0);
  EXPECT_EQ(sampling(R"({"temperature": 100, "top_p": 1, "min_p": 1, "repetition_penalty": 0.01})").temperature, 100);
  for (const auto& [text, words] :
       {std::pair(R"({"temperature": -0.1})", "\"temperature\" is -0.1"),
        std::pair(R"({"temperature": 101})", "0 to 100"),
        std::pair(R"({"temperature": "hot"})", "\"temperature\" is a string"),
        std::pair(R"({"temperature": 1e999})", "generation_config.json"),
        std::pair(R"({"top_p": 1.5})", "\"top_p\" is 1.5"), std::pair(R"({"top_p": [0.9]})", "expected a number"),
        std::pair(R"({"top_k": -2})", "\"top_k\" is -2"),
        std::pair(R"({"top_k": 9223372036854775807})", "\"top_k\" is"), std::pair(R"({"top_k": 1.5})", "whole number"),
        std::pair(R"({"min_p": -1})", "\"min_p\" is -1"), std::pair(R"({"do_sample": 1})", "expected true or false"),
        std::pair(R"({"repetition_penalty": 0})", "\"repetition_penalty\" is 0")}) {
    write_text(golden.path() / "generation_config.json", text);
    const std::string error = load_error(golden.path());
    EXPECT_TRUE(holds(error, words)) << text << error;
    EXPECT_TRUE(holds(error, "generation_config.json")) << text << error;
  }
}

// --- Sentence Transformers ---

// The text's rows pooled by hand, of length 1.
std::vector<float> pooled(Transformer& model, const std::vector<Token>& tokens, const std::string& kind) {
  const std::int64_t lengths[] = {std::ssize(tokens)};
  const View rows = model.encode(tokens, lengths);
  const auto* x = static_cast<const float*>(rows.data);
  const auto H = static_cast<std::size_t>(model.config().hidden);
  std::vector<double> y(H);
  double squares = 0;
  for (std::size_t j = 0; j < H; ++j) {
    double sum = 0, most = -1e30;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      sum += static_cast<double>(x[i * H + j]);
      most = std::max(most, static_cast<double>(x[i * H + j]));
    }
    y[j] = kind == "cls" ? static_cast<double>(x[j]) : kind == "max" ? most : sum / static_cast<double>(tokens.size());
    squares += y[j] * y[j];
  }
  std::vector<float> result;
  for (const double value : y) result.push_back(static_cast<float>(value / std::sqrt(squares)));
  return result;
}

TEST(SentenceFolder, PoolsAsItsConfigSays) {
  const GoldenModel golden("bert");
  fs::create_directory(golden.path() / "1_Pooling");
  const std::pair<std::string, std::string> cases[] = {
      {R"({"word_embedding_dimension": 24, "pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false})", "cls"},
      {R"({"pooling_mode_cls_token": false, "pooling_mode_mean_tokens": true, "pooling_mode_max_tokens": false})",
       "mean"},
      {R"({"pooling_mode_max_tokens": true})", "max"},
      {R"({"pooling_mode_mean_sqrt_len_tokens": true})", "mean"},
      {R"({"embedding_dimension": 24, "pooling_mode": "cls"})", "cls"},
      {R"({"pooling_mode": "max"})", "max"},
  };
  for (const auto& [text, kind] : cases) {
    write_text(golden.path() / "1_Pooling" / "config.json", text);
    Transformer model = golden.load();
    const std::vector<Token> tokens = golden_tokens(model, 7);
    const std::int64_t lengths[] = {7};
    const std::vector<float> expected = pooled(model, tokens, kind), got = model.embed(tokens, lengths);
    EXPECT_LE(relative_error(got, expected), 1e-6) << text;
  }
  for (const auto& [text, error] :
       {std::pair<std::string, std::string>{R"({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true})",
                                            "is cls, mean, expected one of cls, mean, max"},
        {R"({"pooling_mode_lasttoken": true})", "is lasttoken, expected one of"},
        {R"({"pooling_mode": "attention"})", "is \"attention\", expected one of"},
        {R"({"pooling_mode_mean_tokens": false})", "is not given, expected one of"},
        {R"({"pooling_mode_mean_tokens": 1})", "\"pooling_mode_mean_tokens\" is a whole number"}}) {
    write_text(golden.path() / "1_Pooling" / "config.json", text);
    const std::string got = load_error(golden.path());
    EXPECT_TRUE(holds(got, error) && holds(got, "1_Pooling")) << got;
  }
}

TEST(SentenceFolder, ModulesThatAreNotKnownAreRefused) {
  const GoldenModel golden("bert");
  const auto modules = [&](const std::string& more) {
    write_text(golden.path() / "modules.json",
               R"([{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
                   {"idx": 1, "name": "1", "path": "other", "type": "sentence_transformers.models.Pooling"},
                   {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"})" +
                   more + "]");
    return load_error(golden.path());
  };
  EXPECT_EQ(modules(""), "");
  fs::create_directory(golden.path() / "other");
  write_text(golden.path() / "other" / "config.json", R"({"pooling_mode_cls_token": true})");
  EXPECT_EQ(ModelFiles(golden.path()).config().pooling, PoolingKind::first_token);
  const std::string dense =
      modules(R"(, {"idx": 3, "name": "3", "path": "3_Dense", "type": "sentence_transformers.models.Dense"})");
  EXPECT_TRUE(holds(dense, "modules.json") && holds(dense, "models.Dense\", expected Transformer, Pooling")) << dense;
}

TEST(SentenceFolder, TextsEndWhereItsConfigSays) {
  const GoldenModel golden("bert");
  EXPECT_EQ(ModelFiles(golden.path()).config().longest_text, 0);
  const auto longest = [&](const char* text) {
    write_text(golden.path() / "sentence_bert_config.json", text);
    return ModelFiles(golden.path()).config();
  };
  EXPECT_EQ(longest(R"({"max_seq_length": 16, "do_lower_case": false})").longest_text, 16);
  EXPECT_EQ(longest(R"({"max_seq_length": 512})").longest_text, 64);  // it has learnt no more positions
  EXPECT_EQ(longest(R"({"max_seq_length": null})").longest_text, 0);
  EXPECT_EQ(longest("{}").context, 64);
  write_text(golden.path() / "sentence_bert_config.json", R"({"max_seq_length": 0})");
  EXPECT_TRUE(holds(load_error(golden.path()), "sentence_bert_config.json: \"max_seq_length\" is 0"));
}

// --- tensors that nothing uses ---

std::string error_with(const char* model, const std::string& name, std::vector<std::string>* unused = nullptr) {
  const GoldenModel golden(model);
  static const float kNumbers[4] = {};
  golden.change_weights([&](std::vector<io::StoredTensor>& tensors) {
    tensors.push_back({name, "F32", {4}, std::as_bytes(std::span(kNumbers))});
  });
  if (unused != nullptr) *unused = ModelFiles(golden.path()).unused();
  return load_error(golden.path());
}

TEST(UnusedTensors, OfALayerAreRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {"llama", "model.layers.0.self_attn.q_norm.weight"},
      {"llama", "model.layers.1.mlp.experts.0.up_proj.weight"},
      {"llama", "model.layers.1.pre_feedforward_layernorm.weight"},
      {"llama", "model.layers.1.self_attn.q_proj.weight_scale"},
      {"llama", "model.layers.1.self_attn.q_proj.gamma"},
      {"qwen3", "model.layers.1.self_attn.q_norm.bias"},
      {"llama", "lm_head.bias"},
      {"llama", "model.embed_tokens.scale"},
      {"qwen3_moe", "model.layers.0.mlp.up_proj.weight"},
      {"qwen3_moe", "model.layers.0.mlp.experts.4.up_proj.weight"},
      {"qwen3_moe", "model.layers.0.mlp.shared_expert.up_proj.weight"},
      {"gpt2", "transformer.h.0.crossattention.c_attn.weight"},
      {"bert", "encoder.layer.0.attention.self.distance_embedding.weight"},
      {"minimind1", "layers.0.attention.q_norm.weight"},
      {"minimind2_moe", "model.layers.0.mlp.shared_experts.2.up_proj.weight"},
  };
  for (const auto& [model, name] : cases) {
    const std::string bare = std::string(name).starts_with("transformer.") ? name + 12 : name;
    const std::string error = error_with(model, name);
    EXPECT_TRUE(holds(error, "nothing uses the tensor \"" + bare + "\"")) << name << ": " << error;
  }
  EXPECT_TRUE(holds(error_with("llama", "model.layers.0.self_attn.q_proj.lora_A.default.weight"), "is of LoRA"));
}

TEST(UnusedTensors, ALayerMoreThanTheConfigHasIsRefused) {
  for (const char* name : {"llama", "gpt2", "bert", "minimind1", "qwen3_moe"}) {
    const GoldenModel golden(name);
    std::string config = read_text(golden.path() / "config.json");
    for (const char* field : {"\"num_hidden_layers\": 2", "\"n_layer\": 2", "\"n_layers\": 2"})
      if (const std::size_t at = config.find(field); at != std::string::npos) config[at + std::strlen(field) - 1] = '1';
    write_text(golden.path() / "config.json", config);
    const std::string error = load_error(golden.path());
    EXPECT_TRUE(holds(error, "the config has 1 layers, and the tensor") && holds(error, "belongs to layer 1")) << error;
  }
}

TEST(UnusedTensors, OthersAreNamed) {
  std::vector<std::string> unused;
  EXPECT_EQ(error_with("llama", "v_head.summary.weight", &unused), "");
  EXPECT_EQ(unused, std::vector<std::string>{"v_head.summary.weight"});
  EXPECT_EQ(error_with("bert", "classifier.weight", &unused), "");
  EXPECT_EQ(unused, std::vector<std::string>{"classifier.weight"});
  const std::pair<const char*, const char*> computed[] = {{"llama", "model.layers.0.self_attn.rotary_emb.inv_freq"},
                                                          {"gpt2", "transformer.h.0.attn.bias"},
                                                          {"gpt2", "transformer.h.1.attn.masked_bias"},
                                                          {"bert", "embeddings.position_ids"},
                                                          {"bert", "pooler.dense.other"},
                                                          {"bert", "cls.predictions.bias"},
                                                          {"minimind1", "layers.0.attention.mask"},
                                                          {"minimind1", "pos_cis"}};
  for (const auto& [model, name] : computed) {
    EXPECT_EQ(error_with(model, name, &unused), "") << name;
    EXPECT_TRUE(unused.empty()) << name;
  }
}

}  // namespace
}  // namespace attend::llm::test
