// Counts of parameters and bytes: those that are published, those of the golden files, and those that are then taken.
#include "llm/model/plan.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "golden_models.hpp"

namespace attend::llm::test {
namespace {

const ModelConfig& shape(std::string_view name) {
  const ModelConfig* config = find_shape(name);
  if (config == nullptr) throw std::runtime_error("no shape " + std::string(name));
  return *config;
}

TEST(Plan, PublishedCounts) {
  constexpr std::pair<const char*, std::int64_t> kCounts[] = {
      {"minimind-3", 63'912'192},       {"minimind-3-moe", 198'416'640},      {"gpt-2", 124'439'808},
      {"gpt-2-xl", 1'557'611'200},      {"llama-2-7b", 6'738'415'616},        {"llama-3-8b", 8'030'261'248},
      {"llama-3-70b", 70'553'706'496},  {"mistral-7b", 7'241'732'096},        {"qwen3-0.6b", 596'049'920},
      {"qwen3-8b", 8'190'735'360},      {"qwen3-30b-a3b", 30'532'122'624},    {"smollm2-135m", 134'515'008},
      {"smollm2-1.7b", 1'711'376'384},  {"bert-base", 109'482'240 - 590'592},  // those of its pooler are not used here
      {"minilm", 22'713'216 - 147'840},
  };
  for (const auto& [name, count] : kCounts) EXPECT_EQ(count_parameters(shape(name)).total(), count) << name;
}

TEST(Plan, CountsSinksAndTheHeadOfAMaskedModel) {
  ModelConfig c = shape("minilm");
  const std::int64_t before = count_parameters(c).total();
  c.masked_head = true;
  EXPECT_EQ(count_parameters(c).total() - before, 384 * 384 + 384 + 2 * 384 + 30522);
  c.sinks = true;
  EXPECT_EQ(count_parameters(c).biases, count_parameters(shape("minilm")).biases + 6 * 12);
}

TEST(Plan, Gpt3) {
  const ParameterCounts n = count_parameters(shape("gpt-3"));
  EXPECT_EQ(n.embedding, 617'558'016);
  for (const std::int64_t part : {n.queries, n.keys, n.values, n.output}) EXPECT_EQ(part, 14'495'514'624);
  EXPECT_EQ(n.attention(), 57'982'058'496);
  EXPECT_EQ(n.feed_forward, 2 * 57'982'058'496);
  EXPECT_EQ(shape("gpt-3").head_dim, 128);
  EXPECT_EQ(n.active, n.total());
}

TEST(Plan, ExpertsThatRestAreNotActive) {
  const ParameterCounts n = count_parameters(shape("minimind-3-moe"));
  EXPECT_EQ(n.total() - n.active, 8 * 3 * (3 * 768 * 2432));
  EXPECT_EQ(n.router, 8 * 768 * 4);
}

TEST(Plan, KeysAndValuesOfAToken) {
  EXPECT_EQ(kv_bytes_per_token(shape("minimind-3"), 2), 12 * 1024);
  EXPECT_EQ(kv_bytes_per_token(shape("minimind2-small"), 1), 8 * 256);
  EXPECT_EQ(kv_bytes_per_token(shape("llama-3-8b"), 2), 128 * 1024);
}

TEST(Plan, CountsTheNumbersInTheFiles) {
  for (const char* name : {"llama", "llama_bias", "qwen2", "qwen3", "qwen3_moe", "qwen3_moe_dense", "gpt2", "bert",
                           "minimind1", "minimind1_moe", "minimind2_moe"}) {
    const GoldenModel golden(name);
    const ModelFiles files(golden.path());
    EXPECT_EQ(count_parameters(files.config()).total(), files.bytes() / 4) << name;
  }
}

TEST(Plan, UnknownShapesAreNone) {
  EXPECT_EQ(find_shape("gpt-5"), nullptr);
  EXPECT_EQ(find_shape(""), nullptr);
}

TEST(Plan, CachesTakeWhatWasPlanned) {
  const Transformer model = GoldenModel("llama").load();
  for (const bool int8 : {false, true})
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      const CacheOptions options{300, dtype, int8};
      const ModelCache cache(model.config(), options);
      EXPECT_EQ(ModelCache::bytes_for(model.config(), options), cache.bytes());
      EXPECT_EQ(cache.free_pages(), 5);
      EXPECT_LE(cache.bytes_per_token() * 320, cache.bytes());
    }
}

// A Llama of zeros, large enough for norms to be a small part.
TEST(Plan, WeightsTakeWhatWasPlanned) {
  const TempFolder folder;
  for (const char* dtype : {"F32", "F16", "BF16"})
    for (const bool tied : {false, true}) {
      constexpr std::int64_t kHidden = 256, kWidth = 512, kVocabulary = 1000;
      std::vector<io::StoredTensor> tensors;
      std::vector<std::byte> zeros(4 * kHidden * kVocabulary);
      const std::size_t size = dtype == std::string("F32") ? 4 : 2;
      const auto add = [&](const std::string& name, std::vector<std::int64_t> shape) {
        std::size_t count = size;
        for (const std::int64_t n : shape) count *= static_cast<std::size_t>(n);
        tensors.push_back({name + ".weight", dtype, std::move(shape), std::span(zeros).first(count)});
      };
      add("model.embed_tokens", {kVocabulary, kHidden});
      add("lm_head", {kVocabulary, kHidden});
      add("model.norm", {kHidden});
      for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
        for (const char* name : {"input_layernorm", "post_attention_layernorm"}) add(layer + name, {kHidden});
        for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"})
          add(layer + "self_attn." + name, {kHidden, kHidden});
        for (const char* name : {"gate_proj", "up_proj"}) add(layer + "mlp." + name, {kWidth, kHidden});
        add(layer + "mlp.down_proj", {kHidden, kWidth});
      }
      write_text(folder.path() / "model.safetensors", safetensors_bytes(tensors));
      write_text(folder.path() / "config.json",
                 std::string(R"({"model_type": "llama", "vocab_size": 1000, "hidden_size": 256, "num_hidden_layers": 2,
                  "num_attention_heads": 4, "intermediate_size": 512, "tie_word_embeddings": )") +
                     (tied ? "true}" : "false}"));
      const ModelFiles files(folder.path());
      const auto planned = static_cast<double>(weights_memory(files));
      EXPECT_NEAR(planned / static_cast<double>(Transformer(files).bytes()), 1, 0.02) << dtype << tied;
      EXPECT_EQ(count_parameters(files.config()).total() * static_cast<std::int64_t>(size),
                files.bytes() - (tied ? static_cast<std::int64_t>(size) * kHidden * kVocabulary : 0));
    }
}

}  // namespace
}  // namespace attend::llm::test
