// Reads a model's weights: finds each tensor by its family's name, checks its shape, lays it out for the kernels.
#include "llm/model/weights.hpp"

#include <algorithm>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "base/checked.hpp"
#include "base/half.hpp"
#include "io/mapped_file.hpp"

namespace attend::llm {
namespace {

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t n : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(n);
  return text + "]";
}

// Walks over the tensors that the config asks for, each checked before a byte of it is read. With `used` it only walks,
// and notes their names: nothing is loaded.
class Loader {
 public:
  Loader(const ModelFiles& files, const LoadProgress& progress, std::unordered_set<std::string>* used)
      : files_(files),
        names_(files.naming()),
        config_(files.config()),
        progress_(progress),
        used_(used),
        all_(files.bytes()) {}

  ModelWeights load() {
    ModelWeights w;
    const ModelConfig& c = config_;
    w.embedding = token_rows(names_.embedding);
    if (!c.tied_embeddings) w.head = token_rows(names_.head);
    if (c.positions == PositionKind::learned) w.positions = table(names_.positions, c.context);
    if (c.token_types > 0) w.token_types = table(names_.token_types, c.token_types);
    if (c.embedding_norm) w.embedding_norm = norm(names_.embedding_norm, 0);
    if (c.masked_head) {
      w.head_dense = linear(names_.head_dense, c.hidden, c.hidden, true, 0);
      w.head_norm = norm(names_.head_norm, 0);
      w.head_bias = vector(std::string(names_.head_bias) + ".bias", c.vocabulary);
    }
    if (!c.norm_after) w.final_norm = norm(names_.final_norm, 0);
    if (c.positions == PositionKind::rope && files_.find("rope_freqs.weight") != nullptr) {
      const Tensor divisors = vector("rope_freqs.weight", c.rotary() / 2);
      if (used_ == nullptr) w.rope_divisors.assign(divisors.data<float>(), divisors.data<float>() + c.rotary() / 2);
    }
    for (std::int64_t n = 0; n < c.layers; ++n) w.layers.push_back(layer(n));
    return w;
  }

 private:
  [[noreturn]] void refuse(const std::string& text) const { throw io::FileError(files_.path().string() + ": " + text); }

  const StoredTensor& get(const std::string& name, const std::vector<std::int64_t>& shape) {
    const StoredTensor* tensor = files_.find(name);
    if (tensor == nullptr) refuse("the tensor " + io::json_quoted(name) + " is missing");
    if (tensor->shape != shape)
      refuse("the tensor " + io::json_quoted(name) + " is " + shape_text(tensor->shape) + ", expected " +
             shape_text(shape));
    if (!tensor->format)
      refuse("the tensor " + io::json_quoted(name) + " is " + tensor->dtype +
             ", expected F32, F16, BF16 or one of Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q4_K Q5_K Q6_K");
    if (used_ != nullptr) {
      used_->insert(name);
      return *tensor;
    }
    // The one before has been copied by now: its pages of the file would only double the memory.
    if (last_ != nullptr) io::not_needed_now(last_->data);
    last_ = tensor;
    done_ += std::ssize(tensor->data);
    if (progress_) progress_(std::min(done_, all_), all_);
    return *tensor;
  }

  // A weight of `data`, a part of the tensor, in the format that it has in memory.
  Weight loaded(const StoredTensor& t, std::int64_t out, std::int64_t in, std::span<const std::byte> data) const {
    Weight weight(*t.format, out, in, data);
    return files_.loaded_format(t) == *t.format ? std::move(weight) : weight.dequantised();
  }
  // A matrix of which rows [first, first + out) are wanted; `rows` in all.
  Weight rows_of(const StoredTensor& t, std::int64_t rows, std::int64_t first, std::int64_t out, std::int64_t in) {
    if (used_ != nullptr) return {};
    if (!names_.columns_first) {
      const std::int64_t row_bytes = std::ssize(t.data) / rows;
      return loaded(
          t, out, in,
          t.data.subspan(static_cast<std::size_t>(first * row_bytes), static_cast<std::size_t>(out * row_bytes)));
    }
    const auto size = static_cast<std::size_t>(block_of(*t.format).bytes);
    std::vector<std::byte> transposed(static_cast<std::size_t>(out * in) * size);
    for (std::int64_t r = 0; r < out; ++r)
      for (std::int64_t c = 0; c < in; ++c)
        std::memcpy(&transposed[static_cast<std::size_t>(r * in + c) * size],
                    &t.data[static_cast<std::size_t>(c * rows + first + r) * size], size);
    return loaded(t, out, in, transposed);
  }
  std::vector<std::int64_t> matrix_shape(std::int64_t out, std::int64_t in) const {
    return names_.columns_first ? std::vector{in, out} : std::vector{out, in};
  }
  // An embedding or a head: one row per token in every family.
  Weight token_rows(std::string_view name) {
    const StoredTensor& t = get(std::string(name) + ".weight", {config_.vocabulary, config_.hidden});
    if (used_ != nullptr) return {};
    return loaded(t, config_.vocabulary, config_.hidden, t.data);
  }

  // Vectors and tables as floats. They are plain in every file; only matrices come quantised.
  Tensor widened(const StoredTensor& t, const Shape& shape) const {
    const bool plain =
        *t.format == WeightFormat::f32 || *t.format == WeightFormat::f16 || *t.format == WeightFormat::bf16;
    if (!plain) refuse("the tensor " + io::json_quoted(t.name) + " is " + t.dtype + ", expected F32, F16 or BF16");
    if (used_ != nullptr) return {};
    const std::int64_t count = shape[1] * shape[2] * shape[3];
    Tensor floats(DType::f32, shape);
    auto* y = floats.data<float>();
    const auto half = [&](std::int64_t i) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, &t.data[static_cast<std::size_t>(2 * i)], sizeof bits);
      return bits;
    };
    if (*t.format == WeightFormat::f32)
      std::memcpy(y, t.data.data(), static_cast<std::size_t>(count) * sizeof(float));
    else if (*t.format == WeightFormat::f16)
      for (std::int64_t i = 0; i < count; ++i) y[i] = f16_to_float(half(i));
    else
      for (std::int64_t i = 0; i < count; ++i) y[i] = bf16_to_float(half(i));
    return floats;
  }
  Tensor vector(const std::string& name, std::int64_t count) { return widened(get(name, {count}), {1, 1, 1, count}); }
  Tensor maybe_vector(const std::string& name, std::int64_t count) {
    return files_.find(name) == nullptr ? Tensor() : vector(name, count);
  }
  Tensor table(std::string_view name, std::int64_t rows) {
    return widened(get(std::string(name) + ".weight", {rows, config_.hidden}), {1, 1, rows, config_.hidden});
  }
  Norm norm(std::string_view pattern, std::int64_t layer) {
    const std::string name = tensor_name(pattern, layer);
    // BERT's first files call a norm's weight gamma and its bias beta.
    const bool old = files_.find(name + ".weight") == nullptr && files_.find(name + ".gamma") != nullptr;
    Norm n;
    n.weight = vector(name + (old ? ".gamma" : ".weight"), config_.hidden);
    n.bias = maybe_vector(name + (old ? ".beta" : ".bias"), config_.hidden);
    return n;
  }

  // A bias that other layers have must be there.
  Linear linear(std::string_view pattern, std::int64_t out, std::int64_t in, bool bias, std::int64_t layer,
                std::int64_t expert = 0) {
    const std::string name = tensor_name(pattern, layer, expert);
    Linear l;
    l.weight = rows_of(get(name + ".weight", matrix_shape(out, in)), out, 0, out, in);
    l.bias = bias ? vector(name + ".bias", out) : maybe_vector(name + ".bias", out);
    return l;
  }
  // Queries, keys and values in one matrix.
  void split_qkv(Layer& l, std::int64_t n) {
    const std::string name = tensor_name(names_.qkv, n);
    const std::int64_t Q = config_.query_width(), K = config_.kv_width(), all = Q + 2 * K;
    const StoredTensor& t = get(name + ".weight", matrix_shape(all, config_.hidden));
    const Tensor bias = config_.bias_qkv ? vector(name + ".bias", all) : maybe_vector(name + ".bias", all);
    std::int64_t first = 0;
    for (auto [part, rows] : {std::pair{&l.q, Q}, {&l.k, K}, {&l.v, K}}) {
      part->weight = rows_of(t, all, first, rows, config_.hidden);
      if (!bias.empty()) {
        part->bias = Tensor(DType::f32, {1, 1, 1, rows});
        std::copy_n(bias.data<float>() + first, rows, part->bias.data<float>());
      }
      first += rows;
    }
  }

  FeedForward feed_forward(std::string_view gate, std::string_view up, std::string_view down, std::int64_t width,
                           bool bias, std::int64_t layer, std::int64_t expert = 0) {
    FeedForward f;
    if (config_.gated) f.gate = linear(gate, width, config_.hidden, bias, layer, expert);
    f.up = linear(up, width, config_.hidden, bias, layer, expert);
    f.down = linear(down, config_.hidden, width, bias, layer, expert);
    return f;
  }
  std::vector<FeedForward> stacked_experts(std::int64_t n) {
    const std::int64_t E = config_.experts.count, width = config_.experts.width, hidden = config_.hidden;
    std::vector<FeedForward> experts(static_cast<std::size_t>(E));
    const auto part = [&](std::string_view pattern, std::int64_t out, std::int64_t in, Linear FeedForward::* where) {
      const StoredTensor& t = get(tensor_name(pattern, n) + ".weight", {E, out, in});
      if (used_ != nullptr) return;
      const auto each = t.data.size() / static_cast<std::size_t>(E);
      for (std::size_t e = 0; e < experts.size(); ++e)
        (experts[e].*where).weight = loaded(t, out, in, t.data.subspan(e * each, each));
    };
    part(names_.stacked_gate, width, hidden, &FeedForward::gate);
    part(names_.stacked_up, width, hidden, &FeedForward::up);
    part(names_.stacked_down, hidden, width, &FeedForward::down);
    return experts;
  }

  Layer layer(std::int64_t n) {
    const ModelConfig& c = config_;
    Layer l;
    l.attention_norm = norm(names_.attention_norm, n);
    l.feed_forward_norm = norm(names_.feed_forward_norm, n);
    if (names_.q.empty() || (!names_.qkv.empty() && files_.find(tensor_name(names_.qkv, n) + ".weight") != nullptr)) {
      split_qkv(l, n);
    } else {
      l.q = linear(names_.q, c.query_width(), c.hidden, c.bias_qkv, n);
      l.k = linear(names_.k, c.kv_width(), c.hidden, c.bias_qkv, n);
      l.v = linear(names_.v, c.kv_width(), c.hidden, c.bias_qkv, n);
    }
    l.o = linear(names_.o, c.hidden, c.query_width(), c.bias_o, n);
    if (c.qk_norm) {
      l.q_norm = vector(tensor_name(names_.q_norm, n) + ".weight", c.head_dim);
      l.k_norm = vector(tensor_name(names_.k_norm, n) + ".weight", c.head_dim);
    }
    if (c.sinks) l.sinks = widened(get(tensor_name(names_.sinks, n), {c.heads}), {1, c.heads, 1, 1});
    if (!c.has_experts(n)) {
      l.feed_forward = feed_forward(names_.gate, names_.up, names_.down, c.feed_forward, c.bias_feed_forward, n);
      return l;
    }
    l.router = linear(names_.router, c.experts.count, c.hidden, false, n);
    if (!names_.stacked_up.empty()) {
      l.experts = stacked_experts(n);
      return l;
    }
    for (std::int64_t e = 0; e < c.experts.count; ++e)
      l.experts.push_back(
          feed_forward(names_.expert_gate, names_.expert_up, names_.expert_down, c.experts.width, false, n, e));
    for (std::int64_t e = 0; e < c.experts.shared; ++e)
      l.shared.push_back(
          feed_forward(names_.shared_gate, names_.shared_up, names_.shared_down, c.experts.width, false, n, e));
    return l;
  }

  const ModelFiles& files_;
  const Naming& names_;
  const ModelConfig& config_;
  const LoadProgress& progress_;
  std::unordered_set<std::string>* used_;
  const StoredTensor* last_ = nullptr;
  std::int64_t done_ = 0, all_;
};

}  // namespace

ModelWeights load_weights(const ModelFiles& files, const LoadProgress& progress) {
  return Loader(files, progress, nullptr).load();
}

std::unordered_set<std::string> check_weights(const ModelFiles& files) {
  std::unordered_set<std::string> used;
  Loader(files, {}, &used).load();
  return used;
}

std::int64_t weights_memory(const ModelFiles& files) {
  std::int64_t sum = 0;
  for (const StoredTensor& t : files.tensors()) {
    if (!t.format) continue;
    if (files.config().tied_embeddings && t.name == std::string(files.naming().head) + ".weight") continue;
    if (t.shape.size() < 2) {
      sum += 4 * std::ssize(t.data) / block_of(*t.format).bytes * block_of(*t.format).numbers;
      continue;
    }
    std::int64_t rows = 1;
    for (std::size_t d = 0; d + 1 < t.shape.size(); ++d) rows = checked_product("tensor", {rows, t.shape[d]});
    sum += weight_bytes(files.loaded_format(t), rows, t.shape.back());
  }
  return sum;
}

}  // namespace attend::llm
