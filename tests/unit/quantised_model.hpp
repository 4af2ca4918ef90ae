// A small model in a GGUF file whose matrices are all in one format.
#pragma once

#include <deque>
#include <filesystem>
#include <string>
#include <vector>

#include "io/gguf.hpp"
#include "llm/model/export.hpp"
#include "llm/model/stored_numbers.hpp"
#include "llm/train/model_weights.hpp"
#include "support/weights.hpp"
#include "train_tiny.hpp"
#include "training_files.hpp"

namespace attend::llm::test {

// A GGUF file of a small model whose matrices are in one format, and what their numbers are.
class QuantisedModel {
 public:
  explicit QuantisedModel(WeightFormat format) {
    ModelConfig config = tiny("qwen2");
    config.vocabulary = 64, config.hidden = 256, config.head_dim = 64, config.feed_forward = 256, config.layers = 1;
    Network network(config, {.tokens = 1});
    fill(network);
    write_model(folder_.path(), config, network.layout(), network.parameters());
    write_tokenizer(folder_.path(), 64);
    export_gguf(ModelFiles(folder_.path()), folder_.path() / "plain.gguf");
    const io::Gguf plain(folder_.path() / "plain.gguf");
    std::vector<io::GgufTensor> tensors = plain.tensors();
    for (io::GgufTensor& t : tensors) {
      if (t.shape.size() < 2) continue;
      const attend::test::TestWeight& weight = weights.emplace_back(format, t.shape[0], t.shape[1], weights.size() + 5);
      t.type = ggml_number(format);
      t.data = weight.bytes;
    }
    std::vector<io::GgufEntry> entries;
    for (std::size_t n = 0; n < plain.values().size(); ++n)
      entries.push_back({std::string(plain.values()[n].first), io::GgufType::array, plain.stored_value(n)});
    entries.push_back({"general.file_type", io::GgufType::u32, std::int64_t{99}});
    entries.push_back({"test.u16", io::GgufType::u16, std::int64_t{7}});
    entries.push_back({"test.f64", io::GgufType::f64, 0.1});
    io::write_gguf(path(), entries, tensors);
  }
  fs::path path() const { return folder_.path() / "model.gguf"; }
  fs::path other(const std::string& name) const { return folder_.path() / name; }

  std::deque<attend::test::TestWeight> weights;  // of the matrices, in the order of the file

 private:
  TempFolder folder_;
};

}  // namespace attend::llm::test
