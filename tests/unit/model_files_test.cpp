// A model's files: folders, shards and GGUF that give the same rows, and errors that name the tensor and the file.
#include "llm/model/files.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "golden_models.hpp"
#include "io/gguf.hpp"

namespace attend::llm::test {
namespace {

std::string load_error(const fs::path& path) {
  try {
    const ModelFiles files(path);  // every command passes here: what a model would refuse is refused by now
    const Transformer model(files);
  } catch (const io::FileError& error) {
    return error.what();
  }
  return "";
}
bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}
std::string in_quotes(const std::string& name) {
  return "\"" + name + "\"";
}

const char* const kOwnWeights[] = {"llama",     "llama_bias",      "qwen2",        "qwen3",
                                   "qwen3_moe", "qwen3_moe_dense", "gpt2",         "bert",
                                   "minimind1", "minimind1_moe",   "minimind2_moe"};

class ModelTensors : public testing::TestWithParam<const char*> {};

// One tensor after the other is taken away, or has another shape or kind.
TEST_P(ModelTensors, ErrorsNameTheTensor) {
  const GoldenModel golden(GetParam());
  const std::string original = read_text(golden.path() / "model.safetensors");
  const bool tied = ModelFiles(golden.path()).config().tied_embeddings;
  std::vector<std::string> names;
  golden.change_weights([&](std::vector<io::StoredTensor>& tensors) {
    for (const io::StoredTensor& t : tensors) names.push_back(t.name);
  });
  ASSERT_GT(names.size(), 10U);
  const auto error_with = [&](const std::string& name,
                              const std::function<void(std::vector<io::StoredTensor>&, std::size_t)>& change) {
    write_text(golden.path() / "model.safetensors", original);
    golden.change_weights([&](std::vector<io::StoredTensor>& tensors) {
      for (std::size_t i = 0; i < tensors.size(); ++i)
        if (tensors[i].name == name) return change(tensors, i);
    });
    return load_error(golden.path());
  };
  for (const std::string& name : names) {
    if (tied && (name == "lm_head.weight" || name == "output.weight")) continue;
    const std::string bare = name.starts_with("transformer.") ? name.substr(12) : name;
    if (!name.ends_with(".bias")) {
      const std::string error = error_with(
          name, [](auto& tensors, std::size_t i) { tensors.erase(tensors.begin() + static_cast<std::ptrdiff_t>(i)); });
      EXPECT_TRUE(holds(error, in_quotes(bare)) && holds(error, golden.path().string())) << name << ": " << error;
    }
    std::string got, expected;
    const std::string shape = error_with(name, [&](auto& tensors, std::size_t i) {
      auto& t = tensors[i];
      const auto text = [](const std::vector<std::int64_t>& s) {
        return s.size() == 1 ? "[" + std::to_string(s[0]) + "]"
                             : "[" + std::to_string(s[0]) + ", " + std::to_string(s[1]) + "]";
      };
      expected = text(t.shape);
      t.shape = t.shape.size() == 1 ? std::vector<std::int64_t>{1, t.shape[0]}
                                    : std::vector<std::int64_t>{t.shape[0] * t.shape[1]};
      got = text(t.shape);
    });
    EXPECT_TRUE(holds(shape, in_quotes(bare))) << name << ": " << shape;
    // Where the width is not in the config, this tensor is asked for it first.
    EXPECT_TRUE(holds(shape, "is " + got + ", expected " + expected) || holds(shape, "width of the feed-forward"))
        << name << ": " << shape;
    const std::string kind = error_with(name, [](auto& tensors, std::size_t i) { tensors[i].dtype = "I32"; });
    EXPECT_TRUE(holds(kind, in_quotes(bare) + " is I32, expected F32")) << name << ": " << kind;
  }
  write_text(golden.path() / "model.safetensors", original);
  EXPECT_EQ(load_error(golden.path()), "");
}

INSTANTIATE_TEST_SUITE_P(Model, ModelTensors, testing::ValuesIn(kOwnWeights),
                         [](const auto& test) { return std::string(test.param); });

// The weights in two files, and the index that says where each tensor is.
void shard(const GoldenModel& golden) {
  std::vector<io::StoredTensor> parts[2];
  std::string index;
  golden.change_weights([&](std::vector<io::StoredTensor>& tensors) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      parts[i % 2].push_back(tensors[i]);
      index += (index.empty() ? "" : ", ") + in_quotes(tensors[i].name) + ": \"part-" + std::to_string(i % 2) +
               ".safetensors\"";
    }
    for (int p = 0; p < 2; ++p)
      io::write_safetensors(golden.path() / ("part-" + std::to_string(p) + ".safetensors"), parts[p]);
  });
  fs::remove(golden.path() / "model.safetensors");
  write_text(golden.path() / "model.safetensors.index.json", "{\"metadata\": {}, \"weight_map\": {" + index + "}}");
}

TEST(ModelFiles, ShardsGiveTheSameBits) {
  const GoldenModel golden("llama");
  Transformer whole = golden.load();
  shard(golden);
  Transformer sharded = golden.load();
  const std::vector<Token> tokens = golden_tokens(whole);
  EXPECT_EQ(run_alone(sharded, tokens, 24), run_alone(whole, tokens, 24));
}

TEST(ModelFiles, AnIndexStaysInItsFolder) {
  const GoldenModel golden("llama");
  shard(golden);
  const fs::path index = golden.path() / "model.safetensors.index.json";
  const std::string good = read_text(index);
  fs::copy_file(golden.path() / "part-1.safetensors", golden.path().string() + "-outside.safetensors");
  const std::string outside = golden.path().filename().string() + "-outside.safetensors";
  for (const std::string& name :
       {"../" + outside, golden.path().string() + "-outside.safetensors", std::string("sub/part-1.safetensors"),
        std::string(".."), std::string("."), std::string()}) {
    std::string bad = good;
    bad.replace(bad.find("part-1.safetensors"), 18, name);
    write_text(index, bad);
    const std::string error = load_error(golden.path());
    EXPECT_TRUE(holds(error, "is not the name of a file in this folder") && holds(error, "index.json"))
        << name << ": " << error;
  }
  fs::remove(golden.path().string() + "-outside.safetensors");
  for (const char* bad : {"{}", "{\"weight_map\": 3}", "{\"weight_map\": {\"a\": 3}}", "[]", "{"}) {
    write_text(index, bad);
    EXPECT_TRUE(holds(load_error(golden.path()), "index.json")) << bad;
  }
  write_text(index, "{\"weight_map\": {\"a\": \"none.safetensors\"}}");
  EXPECT_TRUE(holds(load_error(golden.path()), "none.safetensors"));
  fs::copy_file(golden.path() / "part-0.safetensors", golden.path() / "part-2.safetensors");
  write_text(index, R"({"weight_map": {"a": "part-0.safetensors", "b": "part-2.safetensors"}})");
  EXPECT_TRUE(holds(load_error(golden.path()), "is there twice"));
}

TEST(ModelFiles, SaysWhatIsNotThere) {
  const GoldenModel golden("llama");
  EXPECT_TRUE(holds(load_error(golden.path() / "none"), "there is no such file or folder"));
  write_text(golden.path() / "model.txt", "x");
  EXPECT_TRUE(holds(load_error(golden.path() / "model.txt"), "expected a .gguf or .pth file, or a folder"));
  fs::rename(golden.path() / "model.safetensors", golden.path() / "other.safetensors");
  EXPECT_EQ(load_error(golden.path()), "");  // the only one
  fs::copy_file(golden.path() / "other.safetensors", golden.path() / "another.safetensors");
  EXPECT_TRUE(holds(load_error(golden.path()), "holds 2 .safetensors files and none is called model.safetensors"));
  fs::remove(golden.path() / "other.safetensors");
  fs::remove(golden.path() / "another.safetensors");
  EXPECT_TRUE(holds(load_error(golden.path()), "holds 0 .safetensors files"));
  fs::remove(golden.path() / "config.json");
  EXPECT_TRUE(holds(load_error(golden.path()), "there is no config.json"));
  for (const char* name : {"m.gguf", "m.pth", "m.bin"}) {
    write_text(golden.path() / name, "not a model");
    EXPECT_TRUE(holds(load_error(golden.path() / name), name));
  }
}

// The golden Llama as llama.cpp's converter writes it: other names, and the rows of q and k in pairs side by side.
class GgufModel {
 public:
  GgufModel() {
    golden_.change_weights([&](std::vector<io::StoredTensor>& stored) {
      for (const io::StoredTensor& t : stored) {
        auto& floats = floats_.emplace_back(t.data.size() / sizeof(float));
        std::memcpy(floats.data(), t.data.data(), t.data.size());
        const bool q = holds(t.name, "q_proj"), k = holds(t.name, "k_proj");
        if (q || k) floats = paired(floats, q ? 4 : 2);
        names_.push_back(renamed(t.name));
        shapes_.push_back(t.shape);
      }
    });
    const auto whole = [&](const char* key, std::int64_t value) {
      entries.push_back({std::string("llama.") + key, io::GgufType::u32, value});
    };
    entries.push_back({"general.architecture", io::GgufType::string, std::string("llama")});
    whole("block_count", 2);
    whole("embedding_length", 32);
    whole("attention.head_count", 4);
    whole("attention.head_count_kv", 2);
    whole("context_length", 128);
    whole("feed_forward_length", 12);
    entries.push_back({"llama.attention.layer_norm_rms_epsilon", io::GgufType::f32, 1e-6});
    entries.push_back({"llama.rope.freq_base", io::GgufType::f32, 10000.0});
    for (std::size_t i = 0; i < names_.size(); ++i)
      tensors.push_back({names_[i], 0, shapes_[i], std::as_bytes(std::span(floats_[i]))});
  }

  const std::vector<float>& expected() const { return golden_.expected(); }
  fs::path write() const {
    const fs::path path = golden_.path() / "model.gguf";
    io::write_gguf(path, entries, tensors);
    return path;
  }
  io::GgufTensor& tensor(std::string_view name) {
    return *std::find_if(tensors.begin(), tensors.end(), [&](const io::GgufTensor& t) { return t.name == name; });
  }
  io::GgufEntry& entry(std::string_view key) {
    return *std::find_if(entries.begin(), entries.end(), [&](const io::GgufEntry& e) { return e.key == key; });
  }

  std::vector<io::GgufEntry> entries;
  std::vector<io::GgufTensor> tensors;

 private:
  // Rows i and i + 4 of each head's 8 come to lie side by side.
  static std::vector<float> paired(const std::vector<float>& x, std::size_t heads) {
    std::vector<float> y(x.size());
    for (std::size_t h = 0; h < heads; ++h)
      for (std::size_t r = 0; r < 8; ++r)
        std::copy_n(x.begin() + static_cast<std::ptrdiff_t>((h * 8 + r % 2 * 4 + r / 2) * 32), 32,
                    y.begin() + static_cast<std::ptrdiff_t>((h * 8 + r) * 32));
    return y;
  }
  static std::string renamed(std::string name) {
    constexpr std::pair<const char*, const char*> kNames[] = {{"model.embed_tokens", "token_embd"},
                                                              {"model.norm", "output_norm"},
                                                              {"lm_head", "output"},
                                                              {"model.layers.", "blk."},
                                                              {"input_layernorm", "attn_norm"},
                                                              {"post_attention_layernorm", "ffn_norm"},
                                                              {"self_attn.q_proj", "attn_q"},
                                                              {"self_attn.k_proj", "attn_k"},
                                                              {"self_attn.v_proj", "attn_v"},
                                                              {"self_attn.o_proj", "attn_output"},
                                                              {"mlp.gate_proj", "ffn_gate"},
                                                              {"mlp.up_proj", "ffn_up"},
                                                              {"mlp.down_proj", "ffn_down"}};
    for (const auto& [from, to] : kNames)
      if (const std::size_t at = name.find(from); at != std::string::npos) name.replace(at, std::strlen(from), to);
    return name;
  }

  GoldenModel golden_{"llama"};
  std::vector<std::vector<float>> floats_;
  std::vector<std::string> names_;
  std::vector<std::vector<std::int64_t>> shapes_;
};

TEST(GgufModels, HaveTheRowsOfTheFolder) {
  const GgufModel gguf;
  Transformer model{ModelFiles(gguf.write())};
  EXPECT_LE(relative_error(run_alone(model, golden_tokens(model), 24), gguf.expected()), 1e-4);
}

TEST(GgufModels, WrongShapesAreNamed) {
  const auto error = [](const std::function<void(GgufModel&)>& change) {
    GgufModel gguf;
    change(gguf);
    return load_error(gguf.write());
  };
  const std::string turned = error([](GgufModel& g) { g.tensor("blk.1.attn_k.weight").shape = {32, 16}; });
  EXPECT_TRUE(holds(turned, "\"blk.1.attn_k.weight\" is [32, 16], expected [16, 32]")) << turned;
  const std::string flat = error([](GgufModel& g) { g.tensor("blk.0.ffn_down.weight").shape = {384}; });
  EXPECT_TRUE(holds(flat, "\"blk.0.ffn_down.weight\" is [384], expected [32, 12]")) << flat;
  const std::string table = error([](GgufModel& g) { g.tensor("token_embd.weight").shape = {64, 2, 16}; });
  EXPECT_TRUE(holds(table, "token_embd.weight is missing or no matrix")) << table;
  const std::string gone = error([](GgufModel& g) { g.tensor("blk.1.ffn_up.weight").name = "other"; });
  EXPECT_TRUE(holds(gone, "\"blk.1.ffn_up.weight\" is missing")) << gone;
  const std::string embedding = error([](GgufModel& g) { g.tensor("token_embd.weight").name = "other"; });
  EXPECT_TRUE(holds(embedding, "token_embd.weight is missing")) << embedding;
}

TEST(GgufModels, BadSettingsAreNamed) {
  struct Case {
    const char* key;
    io::GgufType type;
    io::GgufEntry::Value value;
    const char* error;
  };
  using Type = io::GgufType;
  const Case cases[] = {
      {"general.architecture", Type::string, std::string("rwkv"), "general.architecture is \"rwkv\", expected one of"},
      {"general.architecture", Type::u32, std::int64_t{3}, "general.architecture is missing or no string"},
      {"llama.block_count", Type::u32, std::int64_t{0}, "llama.block_count is 0, expected 1 to 4096"},
      {"llama.block_count", Type::string, std::string("2"), "llama.block_count is no whole number"},
      {"llama.block_count", Type::i64, std::int64_t{-2}, "llama.block_count is -2"},
      {"llama.embedding_length", Type::u64, std::int64_t{1} << 40, "llama.embedding_length is 1099511627776"},
      {"llama.embedding_length", Type::u32, std::int64_t{33}, "llama.embedding_length is not a multiple of the number"},
      {"llama.attention.head_count", Type::u32, std::int64_t{0}, "llama.attention.head_count is 0"},
      {"llama.attention.head_count_kv", Type::u32, std::int64_t{3}, "4 query heads cannot share 3 key-value heads"},
      {"llama.context_length", Type::u32, std::int64_t{0}, "llama.context_length is 0"},
      {"llama.feed_forward_length", Type::f32, 12.0, "llama.feed_forward_length is no whole number"},
      {"llama.attention.layer_norm_rms_epsilon", Type::f32, -1.0, "llama.attention.layer_norm_rms_epsilon is -1"},
      {"llama.attention.layer_norm_rms_epsilon", Type::f64, std::nan(""), "layer_norm_rms_epsilon is "},
      {"llama.rope.freq_base", Type::f32, 0.0, "llama.rope.freq_base is 0"},
      {"llama.rope.freq_base", Type::string, std::string("x"), "llama.rope.freq_base is no number"},
  };
  for (const Case& c : cases) {
    GgufModel gguf;
    io::GgufEntry& entry = gguf.entry(c.key);
    entry.type = c.type;
    entry.value = c.value;
    const std::string error = load_error(gguf.write());
    EXPECT_TRUE(holds(error, c.error)) << error << "\nexpected " << c.error;
  }
  const Case more[] = {
      {"llama.rope.dimension_count", Type::u32, std::int64_t{10}, "llama.rope.dimension_count is 10, expected 2 to 8"},
      {"llama.rope.dimension_count", Type::u32, std::int64_t{3}, "the rotation covers 3 of 8"},
      {"llama.rope.scaling.type", Type::string, std::string("su"), "llama.rope.scaling.type is \"su\""},
      {"llama.attention.value_length", Type::u32, std::int64_t{4}, ""},  // without key_length it says nothing
      {"llama.attention.key_length", Type::u32, std::int64_t{5000}, "llama.attention.key_length is 5000"},
      {"llama.expert_count", Type::u32, std::int64_t{4}, "llama.expert_used_count is missing"},
      {"tokenizer.ggml.bos_token_id", Type::u32, std::int64_t{64},
       "tokenizer.ggml.bos_token_id is 64, expected 0 to 63"},
  };
  for (const Case& c : more) {
    GgufModel gguf;
    gguf.entries.push_back({c.key, c.type, c.value});
    const std::string error = load_error(gguf.write());
    EXPECT_TRUE(holds(error, c.error)) << error << "\nexpected " << c.error;
  }
}

}  // namespace
}  // namespace attend::llm::test
