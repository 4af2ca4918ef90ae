// What a model's folder says beside config.json and safetensors: pytorch_model.bin, generation_config.json, the
// settings of Sentence Transformers; and tensors that nothing uses.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "golden_models.hpp"

namespace attend::llm::test {
namespace {

std::string load_error(const fs::path& path) {
  try {
    const Model model{ModelFiles(path)};
  } catch (const io::FileError& error) {
    return error.what();
  }
  return "";
}
bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
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

// --- Sentence Transformers ---

// The text's rows pooled by hand, of length 1.
std::vector<float> pooled(Model& model, const std::vector<Token>& tokens, const std::string& kind) {
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
    Model model = golden.load();
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

}  // namespace
}  // namespace attend::llm::test
