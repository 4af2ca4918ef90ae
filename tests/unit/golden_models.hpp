// The small models of tests/golden/models, copied where a test may change them, and ways to run them.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "io/safetensors.hpp"
#include "llm/model/transformer.hpp"
#include "support/golden.hpp"

namespace attend::llm::test {

namespace fs = std::filesystem;

class TempFolder {
 public:
  TempFolder() {
    std::string name = (fs::temp_directory_path() / "attend-model-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = name;
  }
  ~TempFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

inline std::string read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}
inline void write_text(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// As io::write_safetensors() writes them, without the wait until they are on the disk: tests write hundreds.
inline std::string safetensors_bytes(std::span<const io::StoredTensor> tensors) {
  std::string header = "{", data;
  for (const io::StoredTensor& t : tensors) {
    std::string shape;
    for (const std::int64_t n : t.shape) shape.append(shape.empty() ? "" : ",").append(std::to_string(n));
    header += std::string(header.size() > 1 ? "," : "") + "\"" + t.name + "\":{\"dtype\":\"" + t.dtype +
              "\",\"shape\":[" + shape + "],\"data_offsets\":[" + std::to_string(data.size()) + "," +
              std::to_string(data.size() + t.data.size()) + "]}";
    data.append(reinterpret_cast<const char*>(t.data.data()), t.data.size());
  }
  header += "}";
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> 8 * i & 255);
  return length + header + data;
}

// One letter a token, as many as the model has: letters, digits, then signs; the last two are a space and <|im_end|>.
inline void write_tokenizer(const fs::path& folder, int vocabulary) {
  const std::string level = R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true})";
  const std::string signs = "!#$%&'()*+,-./:;<=>?@[]^_`{|}~\"\\";
  std::string letters;
  for (int n = 0; n < vocabulary - 2; ++n) {
    const char letter = n < 26   ? static_cast<char>('a' + n)
                        : n < 52 ? static_cast<char>('A' + n - 26)
                        : n < 62 ? static_cast<char>('0' + n - 52)
                                 : signs.at(static_cast<std::size_t>(n - 62));
    letters +=
        std::string("\"") + (letter == '"' || letter == '\\' ? "\\" : "") + letter + "\":" + std::to_string(n) + ",";
  }
  write_text(folder / "tokenizer.json",
             R"({"version":"1.0","added_tokens":[{"id":)" + std::to_string(vocabulary - 1) +
                 R"(,"content":"<|im_end|>","single_word":false,"lstrip":false,)"
                 R"("rstrip":false,"normalized":false,"special":true}],"normalizer":null,"pre_tokenizer":)" +
                 level + R"(,"post_processor":null,"decoder":)" + level + R"(,"model":{"type":"BPE","vocab":{)" +
                 letters + R"("\u0120":)" + std::to_string(vocabulary - 2) + R"(},"merges":[]}})");
}

// A copy of one golden model in a folder of its own.
class GoldenModel {
 public:
  explicit GoldenModel(const std::string& name) {
    const fs::path all = attend::test::golden_folder() / "models";
    std::string weights = name;
    if (fs::exists(all / name / "weights")) std::ifstream(all / name / "weights") >> weights;
    fs::copy_file(all / name / "config.json", path() / "config.json");
    fs::copy_file(all / weights / "model.safetensors", path() / "model.safetensors");
    const std::string bytes = read_text(all / name / "expected.bin");
    expected_.resize(bytes.size() / sizeof(float));
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(expected_.data()));
  }

  const fs::path& path() const { return folder_.path(); }
  const std::vector<float>& expected() const { return expected_; }
  Transformer load() const { return Transformer(ModelFiles(path())); }

  // Writes the weights again after `change` has had its way with their list.
  template <class Change>
  void change_weights(const Change& change) const {
    const std::string bytes = read_text(path() / "model.safetensors");
    io::Metadata metadata;
    std::vector<io::StoredTensor> tensors = io::parse_safetensors(std::as_bytes(std::span(bytes)), "golden", metadata);
    change(tensors);
    write_text(path() / "model.safetensors", safetensors_bytes(tensors));
  }

 private:
  TempFolder folder_;
  std::vector<float> expected_;
};

// The tokens the expected rows belong to, and more of the kind.
inline std::vector<Token> golden_tokens(const Transformer& model, std::int64_t count = 24, std::int64_t first = 0) {
  std::vector<Token> tokens;
  for (std::int64_t i = first; i < first + count; ++i)
    tokens.push_back(static_cast<Token>((37 * i + 11) % model.config().vocabulary));
  return tokens;
}

// Rows of logits as a batch of continuations gives them, one after the other.
inline std::vector<float> run(Transformer& model, std::span<const Token> tokens, std::span<const Continuation> parts,
                              ModelCache& cache) {
  const std::int64_t rows = std::ssize(tokens), H = model.config().hidden, V = model.config().vocabulary;
  const View hidden = model.forward(tokens, parts, cache);
  std::vector<float> out(static_cast<std::size_t>(rows * V));
  model.logits(view_of(static_cast<const float*>(hidden.data), {1, 1, rows, H}), view_of(out.data(), {1, 1, rows, V}));
  return out;
}

// The logits of one sequence alone, `chunk` tokens at a time.
inline std::vector<float> run_alone(Transformer& model, std::span<const Token> tokens, std::int64_t chunk,
                                    const CacheOptions& options = {.tokens = 256}) {
  ModelCache cache(model.config(), options);
  const std::int64_t sequence = cache.add();
  std::vector<float> rows;
  for (std::int64_t at = 0; at < std::ssize(tokens); at += chunk) {
    const std::int64_t count = std::min(chunk, std::ssize(tokens) - at);
    const Continuation part[] = {{sequence, count}};
    const std::vector<float> more =
        run(model, tokens.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count)), part, cache);
    rows.insert(rows.end(), more.begin(), more.end());
  }
  return rows;
}

// The largest difference beside the largest number expected.
inline double relative_error(std::span<const float> got, std::span<const float> expected) {
  if (got.size() != expected.size() || expected.empty()) return 1e30;
  double difference = 0, most = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double d = std::abs(static_cast<double>(got[i]) - static_cast<double>(expected[i]));
    difference = d <= difference ? difference : d;  // keeps a NaN
    most = std::max(most, std::abs(static_cast<double>(expected[i])));
  }
  return difference / most;
}

}  // namespace attend::llm::test
