// Models written for other programs: read back they are the same models.
#include "llm/model/export.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "golden_models.hpp"
#include "llm/text/tokenizer.hpp"
#include "llm/train/model_weights.hpp"
#include "train_tiny.hpp"
#include "training_files.hpp"

namespace attend::llm::test {
namespace {

template <class F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const io::FileError& error) {
    return error.what();
  }
  return "no FileError";
}

// A tokenizer small enough for the golden vocabularies.
constexpr const char* kTokenizer = R"({"version": "1.0", "added_tokens": [
  {"id": 5, "content": "<|end|>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
  "normalizer": null,
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
  "post_processor": null,
  "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
  "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4}, "merges": [["a", "b"], ["ab", "c"]]}})";
constexpr const char* kTokenizerConfig = R"({"eos_token": "<|end|>", "chat_template": "{{ messages }}"})";

class Export : public testing::TestWithParam<const char*> {};

std::vector<float> logits_of(const fs::path& path) {
  Transformer model{ModelFiles(path)};
  return run_alone(model, golden_tokens(model, 60), 60);
}

TEST_P(Export, IsTheSameModelThereAndBack) {
  const GoldenModel golden(GetParam());
  write_text(golden.path() / "tokenizer.json", kTokenizer);
  write_text(golden.path() / "tokenizer_config.json", kTokenizerConfig);
  const std::vector<float> expected = logits_of(golden.path());
  const fs::path gguf = golden.path() / "model.gguf", back = golden.path() / "back", again = golden.path() / "again";
  const ModelFiles files(golden.path());
  export_gguf(files, gguf);
  // Rows of q and k may stand in another order there, and sums with them.
  EXPECT_LE(relative_error(logits_of(gguf), expected), 1e-5);
  const ModelFiles written(gguf);
  const Tokenizer tokenizer = load_tokenizer(written);
  EXPECT_EQ(tokenizer.encode("abcab<|end|>"), (std::vector<Token>{4, 3, 5}));
  EXPECT_EQ(tokenizer.chat_template(), "{{ messages }}");
  export_folder(files, again);
  EXPECT_LE(relative_error(logits_of(again), expected), 1e-5);
  if (files.config().rope_scaling.kind == RopeScaling::Kind::llama3) {
    EXPECT_NE(error_of([&] { export_folder(written, back); }).find("rope_freqs.weight"), std::string::npos);
    return;
  }
  export_folder(written, back);
  EXPECT_LE(relative_error(logits_of(back), expected), 1e-5);
  EXPECT_EQ(load_tokenizer(ModelFiles(back)).encode("abcab<|end|>"), (std::vector<Token>{4, 3, 5}));
}

INSTANTIATE_TEST_SUITE_P(All, Export,
                         testing::Values("llama", "llama3", "linear", "yarn", "mistral", "llama_bias", "qwen2", "qwen3",
                                         "qwen3_moe", "minimind1", "minimind2", "minimind3", "minimind3_moe"),
                         [](const auto& model) { return std::string(model.param); });

// Transformers' Llama rotates whole heads.
TEST(ExportFormats, APartOfAHeadThatIsRotatedGoesToGgufAlone) {
  const GoldenModel golden("llama");
  write_text(golden.path() / "tokenizer.json", kTokenizer);
  std::string config = read_text(golden.path() / "config.json");
  config.insert(config.find('{') + 1, "\"partial_rotary_factor\": 0.5, ");
  write_text(golden.path() / "config.json", config);
  const ModelFiles files(golden.path());
  EXPECT_NE(error_of([&] { export_folder(files, golden.path() / "out"); }).find("Transformers' llama rotates all"),
            std::string::npos);
  export_gguf(files, golden.path() / "out.gguf");
  EXPECT_LE(relative_error(logits_of(golden.path() / "out.gguf"), logits_of(golden.path())), 1e-5);
}

// Queries and keys are weighed by their norm before they turn: its weights stand in the order of their rows.
TEST(ExportFormats, NormsOfQueriesAndKeysFollowTheirRows) {
  ModelConfig config = tiny("minimind1-norm");
  config.rotary_dim = 4;  // no other family's: it is written as it lies
  Network network(config, {.tokens = 1});
  fill(network);
  const TempFolder folder;
  write_model(folder.path(), config, network.layout(), network.parameters());
  write_text(folder.path() / "tokenizer.json", kTokenizer);
  const ModelFiles files(folder.path());
  ASSERT_EQ(files.config().rope_style, RopeStyle::interleaved);
  export_gguf(files, folder.path() / "out.gguf");
  Transformer one(files), other{ModelFiles(folder.path() / "out.gguf")};
  ASSERT_EQ(other.config().rope_style, RopeStyle::half_split);
  const std::vector<Token> tokens = {1, 5, 2, 9, 20, 3};
  EXPECT_LE(relative_error(run_alone(other, tokens, 6), run_alone(one, tokens, 6)), 1e-5);
}

TEST(ExportFormats, RoundsToTheFormatAskedFor) {
  const GoldenModel golden("llama");
  write_text(golden.path() / "tokenizer.json", kTokenizer);
  const ModelFiles files(golden.path());
  const auto floats = [](const StoredTensor& t) {
    const std::int64_t in = t.shape[1];
    const Weight weight(*t.format, t.shape[0], in, t.data);
    std::vector<float> all(static_cast<std::size_t>(t.shape[0] * in));
    for (std::int64_t r = 0; r < t.shape[0]; ++r) weight.row(r, all.data() + r * in);
    return all;
  };
  const std::vector<float> exact = floats(*files.find("model.layers.0.mlp.up_proj.weight"));
  for (const auto& [format, dtype, bits] :
       {std::tuple{WeightFormat::f16, "F16", 11}, {WeightFormat::bf16, "BF16", 8}, {WeightFormat::q8_0, "Q8_0", 0}}) {
    const fs::path gguf = golden.path() / (std::string(dtype) + ".gguf");
    export_gguf(files, gguf, {.format = format});
    const ModelFiles written(gguf);
    EXPECT_EQ(written.find("blk.0.attn_norm.weight")->dtype, "F32");
    const StoredTensor& up = *written.find("blk.0.ffn_up.weight");
    EXPECT_EQ(up.dtype, dtype);
    const std::vector<float> rounded = floats(up);
    ASSERT_EQ(rounded.size(), exact.size());
    for (std::size_t i = 0; i < exact.size(); ++i) {
      float most = 0;  // of its block of 32
      for (std::size_t n = i / 32 * 32; n < i / 32 * 32 + 32; ++n) most = std::max(most, std::abs(exact[n]));
      // Half a step of the format; q8_0's scale is itself rounded to 11 bits.
      const double bound = bits > 0 ? std::ldexp(std::abs(static_cast<double>(exact[i])), -bits) + 1e-7
                                    : static_cast<double>(most) * (0.5 / 127 + std::ldexp(1.0, -11));
      ASSERT_NEAR(rounded[i], exact[i], bound) << dtype << " " << i;
    }
  }
}

TEST(ExportFormats, RefusesWeightsThatAreNoNumbers) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  for (const auto& [name, gguf_name] : {std::pair{"model.embed_tokens.weight", "token_embd.weight"},
                                        {"model.layers.1.self_attn.k_proj.weight", "blk.1.attn_k.weight"},
                                        {"model.norm.weight", "output_norm.weight"}})
    for (const float bad : {nan, infinity, -infinity}) {
      const GoldenModel golden("llama");
      write_text(golden.path() / "tokenizer.json", kTokenizer);
      const fs::path weights = golden.path() / "model.safetensors";
      std::string bytes = read_text(weights);
      {
        const io::Safetensors file(weights);
        const io::StoredTensor& tensor = *file.find(name);
        ASSERT_EQ(tensor.dtype, "F32");
        const std::size_t last =
            bytes.find(io::as_text(tensor.data)) + tensor.data.size() - sizeof bad;  // the last number of the tensor
        std::memcpy(bytes.data() + last, &bad, sizeof bad);
      }
      write_text(weights, bytes);
      const ModelFiles files(golden.path());
      const std::string holds = std::isnan(bad) ? "\" holds NaN" : "\" holds infinity";
      for (const auto& format : {std::optional<WeightFormat>(), {WeightFormat::q8_0}, {WeightFormat::f16}}) {
        const fs::path gguf = golden.path() / "x.gguf", folder = golden.path() / "new";
        expect_in(error_of([&] { export_gguf(files, gguf, {.format = format}); }), gguf_name + holds);
        EXPECT_FALSE(fs::exists(gguf));
        if (format == WeightFormat::q8_0) continue;
        expect_in(error_of([&] { export_folder(files, folder, {.format = format}); }), name + holds);
        expect_in(error_of([&] { export_pth(files, golden.path() / "x.pth", {.format = format}); }), name + holds);
        EXPECT_FALSE(fs::exists(folder));
      }
    }
}

// The same of weights that are f16 or bf16 and are copied as they are.
TEST(ExportFormats, RefusesHalvesThatAreNoNumbers) {
  for (const WeightFormat format : {WeightFormat::f16, WeightFormat::bf16}) {
    const GoldenModel golden("llama");
    write_text(golden.path() / "tokenizer.json", kTokenizer);
    const fs::path halves = golden.path() / "halves";
    export_folder(ModelFiles(golden.path()), halves, {.format = format});
    const std::string whole = read_text(halves / "model.safetensors");
    const std::uint16_t infinity = format == WeightFormat::f16 ? 0x7C00 : 0x7F80;
    for (const std::uint16_t bad : {infinity, std::uint16_t(infinity | 1), std::uint16_t(infinity | 0x8000)}) {
      std::string bytes = whole;
      std::memcpy(bytes.data() + bytes.size() - sizeof bad, &bad, sizeof bad);
      write_text(halves / "model.safetensors", bytes);
      const ModelFiles files(halves);
      const std::string said = error_of([&] { export_gguf(files, golden.path() / "x.gguf"); });
      expect_in(said,
                bad == (infinity | 1) ? "holds NaN, expected finite values" : "holds infinity, expected finite values");
    }
    const std::uint16_t largest = infinity - 1;
    std::string bytes = whole;
    std::memcpy(bytes.data() + bytes.size() - sizeof largest, &largest, sizeof largest);
    write_text(halves / "model.safetensors", bytes);
    EXPECT_NO_THROW(export_gguf(ModelFiles(halves), golden.path() / "x.gguf")) << "the largest number is finite";
  }
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

// A .pth is read with the config.json and the tokenizer next to it: an export writes them, and is read back.
TEST(ExportPth, IsReadBack) {
  for (const char* name : {"llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "minimind1", "minimind2", "minimind3"}) {
    const GoldenModel golden(name);
    write_text(golden.path() / "tokenizer.json", kTokenizer);
    write_text(golden.path() / "tokenizer_config.json", kTokenizerConfig);
    const fs::path folder = golden.path() / "out", pth = folder / "m.pth";
    fs::create_directory(folder);
    const PthExport written = export_pth(ModelFiles(golden.path()), pth);
    EXPECT_EQ(written.beside, (std::vector<std::string>{"config.json", "tokenizer.json", "tokenizer_config.json"}));
    EXPECT_EQ(written.note, "");
    EXPECT_LE(relative_error(logits_of(pth), logits_of(golden.path())), 1e-5) << name;
    EXPECT_EQ(load_tokenizer(ModelFiles(pth)).encode("abcab<|end|>"), (std::vector<Token>{4, 3, 5}));
    // Another type of the same model goes next to it.
    EXPECT_EQ(export_pth(ModelFiles(pth), folder / "half.pth", {.format = WeightFormat::f16}).note, "");
    EXPECT_EQ(names_in(folder), (std::vector<std::string>{"config.json", "half.pth", "m.pth", "tokenizer.json",
                                                          "tokenizer_config.json"}));
  }
}

TEST(ExportPth, NeverChangesHowAnotherModelIsRead) {
  const GoldenModel golden("qwen3");
  write_text(golden.path() / "tokenizer.json", kTokenizer);
  const ModelFiles files(golden.path());
  const fs::path folder = golden.path() / "out";
  fs::create_directory(folder);
  write_text(folder / "full_sft_512.pth", "another model");
  expect_in(export_pth(files, folder / "m.pth").note, "has those of another model");
  EXPECT_EQ(names_in(folder), (std::vector<std::string>{"full_sft_512.pth", "m.pth"}));
  fs::remove(folder / "full_sft_512.pth");
  write_text(folder / "config.json", "{}");
  expect_in(export_pth(files, folder / "m.pth", {.replace = true}).note, "has those of another model");
  EXPECT_EQ(read_text(folder / "config.json"), "{}");
  // In its own folder everything is there.
  const std::vector<std::string> before = names_in(golden.path());
  const PthExport own = export_pth(files, golden.path() / "m.pth");
  EXPECT_EQ(own.note, "");
  EXPECT_TRUE(own.beside.empty());
  EXPECT_EQ(names_in(golden.path()).size(), before.size() + 1);
  EXPECT_LE(relative_error(logits_of(golden.path() / "m.pth"), logits_of(golden.path())), 1e-5);
}

TEST(ExportFormats, RefusesWhatOthersWouldNotLoad) {
  for (const auto& [name, words] :
       {std::pair{"gpt2", "cannot be written"}, {"bert", "cannot be written"}, {"minimind2_moe", "shared experts"}}) {
    const GoldenModel golden(name);
    const ModelFiles files(golden.path());
    const fs::path folder = golden.path() / "new";
    EXPECT_NE(error_of([&] { export_gguf(files, golden.path() / "x.gguf"); }).find(words), std::string::npos) << name;
    EXPECT_NE(error_of([&] { export_folder(files, folder); }).find(words), std::string::npos) << name;
    EXPECT_FALSE(fs::exists(folder)) << name;
  }
  const GoldenModel golden("llama");
  const ModelFiles files(golden.path());
  EXPECT_NE(error_of([&] { export_folder(files, golden.path()); }).find("is there already"), std::string::npos);
  EXPECT_NE(error_of([&] { export_gguf(files, golden.path() / "x.gguf"); }).find("tokenizer.json"), std::string::npos);
}

}  // namespace
}  // namespace attend::llm::test
