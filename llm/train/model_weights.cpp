// Writes the parameters of a network as a model's folder.
#include "llm/train/model_weights.hpp"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attend/add.hpp"
#include "attend/error.hpp"
#include "base/elements.hpp"
#include "io/atomic_file.hpp"
#include "io/safetensors.hpp"
#include "llm/model/files.hpp"
#include "llm/model/finite.hpp"

namespace attend::llm {
namespace {

using Name = std::string_view Naming::*;
constexpr Name kOutside[] = {&Naming::embedding,      &Naming::positions,  &Naming::token_types,
                             &Naming::embedding_norm, &Naming::final_norm, &Naming::head,
                             &Naming::head_dense,     &Naming::head_norm,  &Naming::head_bias};
constexpr Name kInside[] = {&Naming::attention_norm,
                            &Naming::q,
                            &Naming::k,
                            &Naming::v,
                            &Naming::o,
                            &Naming::q_norm,
                            &Naming::k_norm,
                            &Naming::sinks,
                            &Naming::feed_forward_norm,
                            &Naming::gate,
                            &Naming::up,
                            &Naming::down,
                            &Naming::router,
                            &Naming::expert_gate,
                            &Naming::expert_up,
                            &Naming::expert_down,
                            &Naming::shared_gate,
                            &Naming::shared_up,
                            &Naming::shared_down};

// A tensor of the file: rows of the flat parameters, as they are to be written.
struct OutTensor {
  std::string name;
  std::int64_t offset, rows, cols;
  bool matrix;
  bool turned = false;     // [cols, rows] in the file
  bool reordered = false;  // rows of q or k, in the order of another rotation

  std::vector<std::int64_t> shape() const {
    if (!matrix) return {rows * cols};
    return turned ? std::vector{cols, rows} : std::vector{rows, cols};
  }
};

// What the layout calls by Llama's names, under those of another family.
class Renamer {
 public:
  Renamer(const ModelConfig& config, const std::string& family, bool reordered)
      : config_(config),
        to_(family == "gpt2"   ? kGpt2
            : family == "bert" ? kBert
                               : kLlama),
        inner_(family == "gpt2"                         ? "transformer."
               : family == "bert" && config.masked_head ? "bert."
                                                        : ""),
        reordered_(reordered) {}

  // Nothing for what is a part of the tensor before.
  std::optional<OutTensor> renamed(const Parameter& p) const {
    const std::size_t dot = p.name.rfind('.');
    const std::string ending = p.name.ends_with(".weight") || p.name.ends_with(".bias") ? p.name.substr(dot) : "";
    const std::string stem = p.name.substr(0, p.name.size() - ending.size());
    OutTensor t{.name = {}, .offset = p.offset, .rows = p.rows, .cols = p.cols, .matrix = p.matrix};
    std::int64_t numbers[2] = {0, 0};  // of the layer and the expert
    std::string pattern;
    for (std::size_t i = 0, n = 0; i < stem.size(); ++i) {
      if (n == 2 || stem[i] < '0' || stem[i] > '9' || stem[i - 1] != '.') {
        pattern += stem[i];
        continue;
      }
      pattern += n == 0 ? '%' : '#';
      for (; i < stem.size() && stem[i] >= '0' && stem[i] <= '9'; ++i) numbers[n] = 10 * numbers[n] + (stem[i] - '0');
      --i, ++n;
    }
    for (const Name name : kOutside)
      if (kLlama.*name == pattern && (name != &Naming::head || ending == ".weight")) {
        const bool of_head = name == &Naming::head || name == &Naming::head_dense || name == &Naming::head_norm ||
                             name == &Naming::head_bias;
        t.name = (of_head ? "" : inner_) + std::string(to_.*name) + ending;
        return t;
      }
    for (Name name : kInside) {
      if (kLlama.*name != pattern) continue;
      if (to_.q.empty() && (name == &Naming::k || name == &Naming::v)) return std::nullopt;
      const bool q = name == &Naming::q, k = name == &Naming::k;
      if (q && to_.q.empty()) {  // q, k and v lie one after the other
        name = &Naming::qkv;
        (p.matrix ? t.rows : t.cols) = config_.query_width() + 2 * config_.kv_width();
      }
      t.turned = p.matrix && to_.columns_first;
      t.reordered = reordered_ && (q || k || name == &Naming::q_norm || name == &Naming::k_norm);
      if (t.reordered && !p.matrix) std::swap(t.rows, t.cols);  // each number a row of its own
      t.name = inner_ + tensor_name(to_.*name, numbers[0], numbers[1]) + ending;
      return t;
    }
    throw InvalidArgument("write_model: no tensor is called " + p.name);
  }

 private:
  const ModelConfig& config_;
  const Naming& to_;
  std::string inner_;
  bool reordered_;
};

std::vector<float> values_of(const OutTensor& t, const View& parameters, const ModelConfig& config) {
  std::vector<float> values(static_cast<std::size_t>(t.rows * t.cols));
  for (std::int64_t r = 0; r < t.rows; ++r) {
    const std::int64_t from = t.offset + (t.reordered ? row_in_style(config, RopeStyle::half_split, r) : r) * t.cols;
    for (std::int64_t c = 0; c < t.cols; ++c)
      values[static_cast<std::size_t>(t.turned ? c * t.rows + r : r * t.cols + c)] =
          static_cast<float>(load_element(parameters.dtype, parameters.data, from + c));
  }
  return values;
}

}  // namespace

void write_model(const std::filesystem::path& folder, const ModelConfig& config, const ParameterLayout& layout,
                 View parameters, DType dtype) {
  if (dtype == DType::f64) throw InvalidArgument("write_model: f64, expected f32, f16 or bf16");
  // Pairs side by side, as MiniMind's first and GGUF's Llama have them, are Llama's in another order.
  ModelConfig written = config;
  if (config.positions == PositionKind::rope) written.rope_style = RopeStyle::half_split;
  const bool plain = family_to_write(written) != kOwnFamily;
  if (!plain) written.rope_style = config.rope_style;
  const std::string family = family_to_write(written);
  const Renamer renamer(config, family, written.rope_style != config.rope_style);
  const auto type_of = [&](const OutTensor& t) { return t.matrix ? dtype : DType::f32; };
  std::vector<OutTensor> out;
  std::vector<io::StoredTensor> tensors;
  for (const Parameter& p : layout.all()) {
    const auto t = renamer.renamed(p);
    if (!t) continue;
    const DType type = type_of(*t);
    tensors.push_back({t->name, type == DType::f32 ? "F32" : type == DType::f16 ? "F16" : "BF16", t->shape(), {}});
    out.push_back(*t);
  }
  io::write_safetensors(
      folder / "model.safetensors", tensors, {{"format", "pt"}}, [&](std::size_t n, const io::PutBytes& put) {
        const std::vector<float> values = values_of(out[n], parameters, config);
        check_finite("the trained model", out[n].name, values);
        if (type_of(out[n]) == DType::f32) return put(std::as_bytes(std::span(values)));
        const Shape shape{1, 1, 1, std::ssize(values)};
        Tensor halves(type_of(out[n]), shape);
        convert(view_of(values.data(), shape), halves);
        put({static_cast<const std::byte*>(halves.view().data), static_cast<std::size_t>(halves.bytes())});
      });
  const std::string json = config_to_json(written, family);
  io::write_file_atomically(folder / "config.json", std::as_bytes(std::span(json)));
}

}  // namespace attend::llm
