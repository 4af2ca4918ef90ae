// A GGUF file of any bytes as a model: refused with a FileError, or weights that run on a few tokens.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "attend/error.hpp"
#include "io/file_error.hpp"
#include "io/gguf.hpp"
#include "llm/model/plan.hpp"
#include "llm/model/transformer.hpp"
#include "seeded.hpp"

namespace attend::test {
namespace {

namespace fs = std::filesystem;

// A folder for as long as the fuzzer runs.
struct Folder {
  Folder() {
    std::string name = (fs::temp_directory_path() / "attend-fuzz-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) stop("no temporary folder");
    path = name;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  fs::path path;
};
fs::path place() {
  static const Folder folder;
  return folder.path / "m.gguf";
}

void use(const std::string& bytes) {
  std::ofstream(place(), std::ios::binary) << bytes;
  try {
    const llm::ModelFiles files(place());
    if (llm::weights_memory(files) < 0) stop("less than no memory");
    llm::Transformer model(files);
    const llm::ModelConfig& c = model.config();
    const llm::Token last = static_cast<llm::Token>(c.vocabulary - 1);
    const llm::Token tokens[] = {0, last, 0};
    if (!c.causal) {
      const std::int64_t lengths[] = {2, 1};
      const std::vector<float> rows = model.embed(tokens, lengths);
      touch(std::as_bytes(std::span(rows)));
      return;
    }
    if (c.kv_width() > 1 << 14) return;  // the cache is not in the file
    llm::ModelCache cache(c, {.tokens = 64});
    const std::int64_t sequence = cache.add();
    const llm::Continuation parts[] = {{sequence, 3}};
    model.forward(tokens, parts, cache);
    const llm::Continuation one[] = {{sequence, 1}};
    const View hidden = model.forward(std::span(tokens).first(1), one, cache);
    std::vector<float> logits(static_cast<std::size_t>(c.vocabulary));
    model.logits(hidden, view_of(logits.data(), {1, 1, 1, c.vocabulary}));
  } catch (const io::FileError& error) {
    if (std::string_view(error.what()).find("m.gguf") == std::string_view::npos) stop("an error without its file");
  } catch (const InvalidArgument&) {
    return;  // a size that no kernel takes, or a position that was never learnt
  }
}

std::string example(const std::string& family, bool learned, bool experts) {
  std::vector<io::GgufEntry> entries{{"general.architecture", io::GgufType::string, family}};
  const auto whole = [&](const char* key, std::int64_t value) {
    entries.push_back({family + "." + key, io::GgufType::u32, value});
  };
  constexpr std::int64_t kHidden = 8, kWidth = 4, kVocabulary = 5, kContext = 6;
  constexpr std::int64_t kExperts = 17, kExpertWidth = 1;  // more than std::sort sorts by insertion
  whole("block_count", 1);
  whole("embedding_length", kHidden);
  whole("attention.head_count", 2);
  whole("attention.head_count_kv", learned ? 2 : 1);
  whole("context_length", kContext);
  whole("feed_forward_length", kWidth);
  if (!learned) entries.push_back({family + ".rope.freq_base", io::GgufType::f32, 10000.0});
  if (experts) {
    whole("expert_count", kExperts);
    whole("expert_used_count", 2);
    whole("expert_feed_forward_length", kExpertWidth);
  }
  std::vector<std::string> names;
  std::vector<std::vector<std::int64_t>> shapes;
  const auto add = [&](const char* name, std::vector<std::int64_t> shape) {
    names.push_back(std::string(name) + ".weight");
    shapes.push_back(std::move(shape));
  };
  const bool bert = family == "bert";
  add("token_embd", {kVocabulary, kHidden});
  if (learned) add("position_embd", {kContext, kHidden});
  add(bert ? "token_embd_norm" : "output_norm", {kHidden});
  if (bert) add("token_types", {2, kHidden});
  add(bert ? "blk.0.attn_output_norm" : "blk.0.attn_norm", {kHidden});
  add(bert ? "blk.0.layer_output_norm" : "blk.0.ffn_norm", {kHidden});
  if (family == "gpt2") {
    add("blk.0.attn_qkv", {3 * kHidden, kHidden});
  } else {
    add("blk.0.attn_q", {kHidden, kHidden});
    add("blk.0.attn_k", {learned ? kHidden : kHidden / 2, kHidden});
    add("blk.0.attn_v", {learned ? kHidden : kHidden / 2, kHidden});
  }
  add("blk.0.attn_output", {kHidden, kHidden});
  if (family.starts_with("qwen3")) {
    add("blk.0.attn_q_norm", {4});
    add("blk.0.attn_k_norm", {4});
  }
  if (family == "llama") add("rope_freqs", {2});
  if (experts) {
    add("blk.0.ffn_gate_inp", {kExperts, kHidden});
    add("blk.0.ffn_gate_exps", {kExperts, kExpertWidth, kHidden});
    add("blk.0.ffn_up_exps", {kExperts, kExpertWidth, kHidden});
    add("blk.0.ffn_down_exps", {kExperts, kHidden, kExpertWidth});
  } else {
    if (!learned) add("blk.0.ffn_gate", {kWidth, kHidden});
    add("blk.0.ffn_up", {kWidth, kHidden});
    add("blk.0.ffn_down", {kHidden, kWidth});
  }
  const std::vector<float> numbers(256, 0.25F);
  std::vector<io::GgufTensor> tensors;
  for (std::size_t i = 0; i < names.size(); ++i) {
    std::size_t count = 1;
    for (const std::int64_t n : shapes[i]) count *= static_cast<std::size_t>(n);
    tensors.push_back({names[i], 0, shapes[i], std::as_bytes(std::span(numbers).first(count))});
  }
  io::write_gguf(place(), entries, tensors);
  std::ifstream file(place(), std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  const llm::ModelFiles files(place());
  const llm::Transformer model(files);  // an example that is refused would test nothing
  return bytes;
}

}  // namespace
}  // namespace attend::test

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most,
                                               unsigned int seed) {
  using attend::test::example;
  static const std::vector<std::string> kExamples = {example("llama", false, false), example("qwen3", false, false),
                                                     example("qwen3moe", false, true), example("gpt2", true, false),
                                                     example("bert", true, false)};
  return attend::test::mutate_or_begin(data, size, most, seed, kExamples);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  attend::test::use(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
