// What a .pth of MiniMind is: weights alone, whose generation is told by their names and shapes.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "llm/model/files.hpp"

namespace attend::llm {
namespace {

struct Generation {
  bool old_names = false;  // tok_embeddings, layers.0.attention.wq
  bool qk_norm = false;
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  double theta = 1e6, eps = 1e-5;
  std::int64_t experts_used = 2;
};

class Guess {
 public:
  explicit Guess(const ModelFiles& files)
      : files_(files),
        old_names_(files.find("tok_embeddings.weight") != nullptr),
        names_(old_names_ ? kMiniMindV1 : kLlama) {}

  ModelConfig config() const {
    const bool lora = std::any_of(files_.tensors().begin(), files_.tensors().end(),
                                  [](const StoredTensor& t) { return t.name.find(".lora.") != std::string::npos; });
    if (lora && files_.find(name(names_.embedding)) == nullptr)
      throw io::FileError(
          files_.path().string() +
          ": holds LoRA weights alone, expected a whole model; merge them into theirs: attend merge MODEL " +
          files_.path().string() + " OUT");
    const auto embedding = matrix(name(names_.embedding));
    const std::int64_t V = embedding[0], H = embedding[1];
    const Generation g = generation(H);
    const bool experts = files_.find(name(names_.router)) != nullptr;
    check_width(matrix(name(experts ? names_.expert_up : names_.up))[0], H, g);
    const StoredTensor* head = files_.find(name(names_.head));
    const bool tied = head == nullptr || same_numbers(*head, *files_.find(name(names_.embedding)));
    // Llama's files have the same names, and a small one may have the same shapes.
    if (!tied && V != kVocabulary)
      doubt("it has " + std::to_string(V) + " tokens and a head of its own, where MiniMind has " +
            std::to_string(kVocabulary) + " or ties the head to the embedding");
    return config_from_json(fields(g, V, H, tied), files_.path().string());
  }

 private:
  static constexpr std::int64_t kVocabulary = 6400;

  static std::string name(std::string_view pattern) { return tensor_name(pattern) + ".weight"; }

  [[noreturn]] void doubt(const std::string& why) const {
    throw io::FileError(files_.path().string() +
                        ": there is no config.json beside it, and the weights do not tell which MiniMind it is: " +
                        why + "; expected the model's config.json beside the file, " +
                        (old_names_ ? "with model_type (minimind), vocab_size, dim, n_layers, n_heads, n_kv_heads, "
                                      "norm_eps and rope_theta"
                                    : "with model_type, vocab_size, hidden_size, num_hidden_layers, "
                                      "num_attention_heads, num_key_value_heads, rms_norm_eps and rope_theta"));
  }

  std::vector<std::int64_t> matrix(const std::string& tensor) const {
    const StoredTensor* t = files_.find(tensor);
    if (t == nullptr) doubt("there is no tensor " + io::json_quoted(tensor));
    if (t->shape.size() != 2) doubt("the tensor " + io::json_quoted(tensor) + " is no matrix");
    return t->shape;
  }

  Generation generation(std::int64_t H) const {
    const std::int64_t Q = matrix(name(names_.q))[0], K = matrix(name(names_.k))[0];
    if (files_.find(tensor_name(names_.q) + ".bias") != nullptr) doubt("its queries have a bias");
    Generation g{.old_names = old_names_};
    const StoredTensor* q_norm = names_.q_norm.empty() ? nullptr : files_.find(name(names_.q_norm));
    if (q_norm != nullptr) {  // the third
      if (q_norm->shape.size() != 1 || q_norm->shape[0] < 1)
        doubt("the tensor " + io::json_quoted(q_norm->name) + " is no vector");
      g.qk_norm = true;
      g.head_dim = q_norm->shape[0];
      g.heads = Q / g.head_dim;
      g.kv_heads = K / g.head_dim;
      g.eps = 1e-6;
      g.experts_used = 1;
    } else if (old_names_ && 2 * K == H) {  // the first, of 2024
      g.heads = 16;
      g.kv_heads = 8;
      g.theta = 1e4;
    } else if (4 * K == H) {  // the second; until April 2025 with the names, and the pairs, of the first
      g.heads = 8;
      g.kv_heads = 2;
    } else {
      doubt("keys of width " + std::to_string(K) + " beside a hidden size of " + std::to_string(H) + ", expected " +
            (old_names_ ? "a half or " : "") + "a quarter");
    }
    if (!g.qk_norm) g.head_dim = H / g.heads;
    if (g.head_dim < 1 || g.heads * g.head_dim != Q || g.kv_heads * g.head_dim != K)
      doubt("queries of width " + std::to_string(Q) + " and keys of width " + std::to_string(K) +
            " are no whole number of heads of " + std::to_string(g.head_dim));
    return g;
  }

  // Of the feed-forward: 8/3 of the hidden size, in the third generation pi times, in whole 64s.
  void check_width(std::int64_t width, std::int64_t H, const Generation& g) const {
    const std::int64_t usual = (8 * H / 3 + 63) / 64 * 64;
    const auto third = 64 * static_cast<std::int64_t>(std::ceil(static_cast<double>(H) * std::numbers::pi / 64));
    if (width == usual || (g.qk_norm && width == third)) return;
    doubt("its feed-forward is " + std::to_string(width) + " wide, expected " +
          std::to_string(g.qk_norm ? third : usual) + " beside a hidden size of " + std::to_string(H));
  }

  io::Json fields(const Generation& g, std::int64_t V, std::int64_t H, bool tied) const {
    using Value = io::Json::Value;
    io::Json::Object object;
    const auto put = [&](const char* field, Value value) { object.emplace_back(field, io::Json(std::move(value))); };
    std::int64_t layers = 0;
    while (files_.find(tensor_name(names_.k, layers) + ".weight") != nullptr) ++layers;
    put("model_type", std::string("minimind"));
    put("vocab_size", V);
    put(old_names_ ? "dim" : "hidden_size", H);
    put(old_names_ ? "n_layers" : "num_hidden_layers", layers);
    put("num_attention_heads", g.heads);
    put("num_key_value_heads", g.kv_heads);
    put("head_dim", g.head_dim);
    put("max_position_embeddings", std::int64_t{32768});
    put("rms_norm_eps", g.eps);
    put("norm_eps", g.eps);
    put("rope_theta", g.theta);
    put("tie_word_embeddings", tied);
    if (files_.find(name(names_.router)) != nullptr) {
      std::int64_t shared = 0;
      while (shared < (old_names_ ? 1 : 64) &&
             files_.find(tensor_name(names_.shared_up, 0, shared) + ".weight") != nullptr)
        ++shared;
      put(g.qk_norm ? "num_experts" : "n_routed_experts", matrix(name(names_.router))[0]);
      put("num_experts_per_tok", g.experts_used);
      put("n_shared_experts", shared);
    }
    return io::Json(Value(std::move(object)));
  }

  const ModelFiles& files_;
  bool old_names_;
  const Naming& names_;
};

}  // namespace

ModelConfig minimind_config(const ModelFiles& files) {
  return Guess(files).config();
}

bool same_numbers(const StoredTensor& a, const StoredTensor& b) {
  if (a.dtype != b.dtype || a.shape != b.shape || a.data.size() != b.data.size()) return false;
  return a.data.data() == b.data.data() || std::memcmp(a.data.data(), b.data.data(), a.data.size()) == 0;
}

}  // namespace attend::llm
