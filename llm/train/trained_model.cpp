// Weights into flat parameters and back into files.
#include "llm/train/trained_model.hpp"

#include <cstring>

#include "io/atomic_folder.hpp"
#include "llm/model/weights.hpp"
#include "llm/train/model_weights.hpp"
#include "llm/train/prepare.hpp"

namespace attend::llm {
namespace {

class Loader {
 public:
  Loader(const ParameterLayout& layout, MutableView parameters)
      : layout_(layout), values_(static_cast<float*>(parameters.data)) {}

  // Rows of `weight` at a place; `first` rows lie before them there (k behind q).
  void matrix(ParameterPlace place, const Weight& weight, std::int64_t first = 0) {
    const Parameter& p = layout_.at(*place);
    for (std::int64_t r = 0; r < weight.out(); ++r) weight.row(r, values_ + p.offset + (first + r) * p.cols);
  }
  void vector(ParameterPlace place, const Tensor& tensor, std::int64_t first = 0) {
    if (!place || tensor.empty()) return;
    const View view = tensor.view();
    std::memcpy(values_ + layout_.at(*place).offset + first, view.data,
                static_cast<std::size_t>(view.shape[0] * view.shape[1] * view.shape[2] * view.shape[3]) * 4);
  }
  void norm(const NormPlaces& places, const Norm& norm) {
    vector(places.weight, norm.weight);
    vector(places.bias, norm.bias);
  }
  void linear(const LinearPlaces& places, std::initializer_list<const Linear*> parts) {
    std::int64_t first = 0;
    for (const Linear* part : parts) {
      if (part->weight.out() == 0) continue;
      matrix(places.weight, part->weight, first);
      vector(places.bias, part->bias, first);
      first += part->weight.out();
    }
  }
  void feed_forward(const FeedForwardPlaces& places, const FeedForward& f) {
    linear(places.in, {&f.gate, &f.up});
    linear(places.down, {&f.down});
  }

 private:
  const ParameterLayout& layout_;
  float* values_;
};

}  // namespace

void load_parameters(const ModelFiles& files, const ParameterLayout& layout, MutableView parameters) {
  const ModelWeights weights = load_weights(files);
  if (!weights.rope_divisors.empty())
    throw io::FileError(files.path().string() +
                        ": its rotation is scaled by a table (rope_freqs.weight), which training has no place for; "
                        "expected the model as Transformers has it");
  Loader loader(layout, parameters);
  loader.matrix(layout.embedding, weights.embedding);
  loader.vector(layout.positions, weights.positions);
  loader.vector(layout.token_types, weights.token_types);
  loader.norm(layout.embedding_norm, weights.embedding_norm);
  if (layout.head_bias) {
    loader.linear(layout.head_dense, {&weights.head_dense});
    loader.norm(layout.head_norm, weights.head_norm);
    loader.vector(layout.head_bias, weights.head_bias);
  }
  if (layout.head) loader.matrix(layout.head, weights.head);
  if (layout.final_norm.weight) loader.norm(layout.final_norm, weights.final_norm);
  for (std::size_t n = 0; n < layout.layers.size(); ++n) {
    const LayerPlaces& to = layout.layers[n];
    const Layer& from = weights.layers[n];
    loader.norm(to.attention_norm, from.attention_norm);
    loader.norm(to.feed_forward_norm, from.feed_forward_norm);
    loader.linear(to.qkv, {&from.q, &from.k, &from.v});
    loader.linear(to.o, {&from.o});
    loader.vector(to.q_norm, from.q_norm);
    loader.vector(to.k_norm, from.k_norm);
    loader.vector(to.sinks, from.sinks);
    if (!to.router) {
      loader.feed_forward(to.feed_forward, from.feed_forward);
      continue;
    }
    loader.matrix(to.router, from.router.weight);
    for (std::size_t e = 0; e < to.experts.size(); ++e) loader.feed_forward(to.experts[e], from.experts[e]);
    for (std::size_t e = 0; e < to.shared.size(); ++e) loader.feed_forward(to.shared[e], from.shared[e]);
  }
}

void write_trained(const std::filesystem::path& folder, const ModelConfig& config, const ParameterLayout& layout,
                   View parameters, const std::filesystem::path& tokenizer) {
  io::NewFolder made(folder, true);
  write_model(made.path(), config, layout, parameters);
  copy_tokenizer(tokenizer, made.path());
  made.commit();
}

}  // namespace attend::llm
