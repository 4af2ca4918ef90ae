// A language model small enough to train within a lab.
#include "labs/tiny_model.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "attend/cross_entropy.hpp"
#include "attend/embedding.hpp"
#include "attend/error.hpp"
#include "attend/linear.hpp"
#include "attend/rms_norm.hpp"
#include "labs/adam.hpp"
#include "labs/tools.hpp"

namespace attend::labs {
namespace {

TransformerBlockConfig block_config(const TinyShape& s) {
  TransformerBlockConfig config;
  config.attention = {.width = s.width, .heads = s.heads, .kv_heads = s.kv_heads, .rope_theta = s.rope_theta};
  if (s.rope) config.attention.rope = RopeStyle::half_split;
  config.hidden = s.hidden == 0 ? 2 * s.width : s.hidden;
  return config;
}

template <class Attention, class Block>
void list_tensors(Attention& a, Block& b, std::vector<Tensor*>& list) {
  for (Tensor* t : {&a.wq, &a.wk, &a.wv, &a.wo, &b.norm1, &b.norm2, &b.gate, &b.up, &b.down})
    if (!t->empty()) list.push_back(t);
}

void copy_into(const Tensor& from, Tensor& to) {
  std::memcpy(to.view().data, from.view().data, static_cast<std::size_t>(from.bytes()));
}

}  // namespace

TinyModel::TinyModel(const TinyShape& shape)
    : shape_(shape),
      table_(random_tensor({1, 1, shape.vocabulary, shape.width}, shape.seed, 0.5)),
      norm_(DType::f32, {1, 1, 1, shape.width}),
      head_(random_tensor({1, 1, shape.vocabulary, shape.width}, shape.seed + 1,
                          0.5 / std::sqrt(static_cast<double>(shape.width)))) {
  std::fill_n(norm_.data<float>(), norm_.size(), 1.0F);
  for (std::int64_t n = 0; n < shape.layers; ++n) {
    blocks_.emplace_back(block_config(shape));
    blocks_.back().initialise(shape.seed + 10 + static_cast<std::uint64_t>(n));
  }
  for (const Tensor* p : parameters()) {
    first_.emplace_back(DType::f32, p->shape());
    second_.emplace_back(DType::f32, p->shape());
  }
}

std::vector<Tensor*> TinyModel::parameters() {
  std::vector<Tensor*> list = {&table_, &norm_, &head_};
  for (TransformerBlock& block : blocks_) list_tensors(block.attention().parameters(), block.parameters(), list);
  return list;
}

std::int64_t TinyModel::parameter_count() const {
  std::int64_t count = table_.size() + norm_.size() + head_.size();
  for (const TransformerBlock& block : blocks_) count += block.parameter_count();
  return count;
}

TinyModel TinyModel::clone() const {
  TinyModel other(shape_);
  const auto from = const_cast<TinyModel*>(this)->parameters();  // read alone
  const auto to = other.parameters();
  for (std::size_t n = 0; n < from.size(); ++n) copy_into(*from[n], *to[n]);
  return other;
}

std::int64_t TinyModel::length_of(const TinyBatch& batch) const {
  const auto tokens = static_cast<std::int64_t>(batch.tokens.size());
  if (batch.batch < 1 || tokens % batch.batch != 0 || batch.targets.size() != batch.tokens.size())
    throw InvalidArgument(
        fmt::format("a batch of {} rows has {} tokens and {} targets", batch.batch, tokens, batch.targets.size()));
  return tokens / batch.batch;
}

Tensor TinyModel::normed(const Tensor& x, const Tensor& weight) const {
  Tensor y(DType::f32, x.shape());
  rms_norm(x, weight, y);
  return y;
}

Tensor TinyModel::hidden(const TinyBatch& batch, std::vector<Tensor>* inputs) const {
  Tensor x(DType::f32, {batch.batch, 1, length_of(batch), shape_.width});
  embedding(table_, batch.tokens, x);
  for (const TransformerBlock& block : blocks_) {
    Tensor y = block.forward(x, shape_.options);
    if (inputs != nullptr) inputs->push_back(std::move(x));
    x = std::move(y);
  }
  Tensor y = normed(x, norm_);
  if (inputs != nullptr) inputs->push_back(std::move(x));
  return y;
}

double TinyModel::loss(const TinyBatch& batch) const {
  const Tensor h = hidden(batch, nullptr);
  Tensor losses(DType::f32, {batch.batch, 1, length_of(batch), 1});
  cross_entropy(h, head_, batch.targets, losses);
  double sum = 0;
  for (const double loss : doubles_of(losses)) sum += loss;
  const auto targets = std::count_if(batch.targets.begin(), batch.targets.end(), [](auto t) { return t != kNoTarget; });
  return sum / static_cast<double>(std::max<std::ptrdiff_t>(1, targets));
}

double TinyModel::accuracy(const TinyBatch& batch) const {
  const Tensor h = hidden(batch, nullptr);
  Tensor logits(DType::f32, {batch.batch, 1, length_of(batch), shape_.vocabulary});
  linear(h, head_, {}, logits);
  std::int64_t right = 0, asked = 0;
  for (std::size_t n = 0; n < batch.targets.size(); ++n) {
    if (batch.targets[n] == kNoTarget) continue;
    const float* row = logits.data<float>() + static_cast<std::int64_t>(n) * shape_.vocabulary;
    ++asked;
    right += std::max_element(row, row + shape_.vocabulary) - row == batch.targets[n] ? 1 : 0;
  }
  return static_cast<double>(right) / static_cast<double>(std::max<std::int64_t>(1, asked));
}

double TinyModel::train(const TinyBatch& batch, double rate) {
  std::vector<Tensor> inputs;
  const Tensor h = hidden(batch, &inputs);
  const std::int64_t L = length_of(batch);
  const auto targets = std::count_if(batch.targets.begin(), batch.targets.end(), [](auto t) { return t != kNoTarget; });
  Tensor dloss(DType::f32, {batch.batch, 1, L, 1}), losses(DType::f32, {batch.batch, 1, L, 1});
  std::fill_n(dloss.data<float>(), dloss.size(), 1 / static_cast<float>(std::max<std::ptrdiff_t>(1, targets)));
  Tensor dh(DType::f32, h.shape()), dhead(DType::f32, head_.shape());
  cross_entropy_backward(dloss, h, head_, batch.targets, {.dhidden = dh, .dweight = dhead, .loss = losses});
  Tensor dnorm(DType::f32, norm_.shape());
  rms_norm_backward(dh, inputs.back(), norm_, dh, dnorm);
  std::vector<TransformerBlockGradients> layers(blocks_.size());
  for (std::size_t n = blocks_.size(); n-- > 0;) {
    layers[n] =
        blocks_[n].backward(n + 1 == blocks_.size() ? dh.view() : layers[n + 1].dx.view(), inputs[n], shape_.options);
  }
  Tensor dtable(DType::f32, table_.shape());
  embedding_backward(layers.empty() ? dh.view() : layers.front().dx.view(), batch.tokens, dtable);
  std::vector<Tensor*> gradients = {&dtable, &dnorm, &dhead};
  for (TransformerBlockGradients& layer : layers) list_tensors(layer.attention, layer.parameters, gradients);
  adam_step(parameters(), gradients, first_, second_, ++steps_, rate);
  double sum = 0;
  for (const double loss : doubles_of(losses)) sum += loss;
  return sum / static_cast<double>(std::max<std::ptrdiff_t>(1, targets));
}

Tensor TinyModel::states(const TinyBatch& batch, std::int64_t n) const {
  std::vector<Tensor> inputs;
  (void)hidden(batch, &inputs);
  return std::move(inputs[static_cast<std::size_t>(n)]);
}

Tensor TinyModel::weights(const TinyBatch& batch, std::int64_t layer) const {
  const TransformerBlock& block = blocks_[static_cast<std::size_t>(layer)];
  const Tensor x = normed(states(batch, layer), block.parameters().norm1);
  Tensor weights;
  (void)block.attention().forward(x, shape_.options, {.weights = &weights});
  return weights;
}

Tensor TinyModel::head_outputs(const TinyBatch& batch, std::int64_t layer) const {
  const TransformerBlock& block = blocks_[static_cast<std::size_t>(layer)];
  const Tensor x = normed(states(batch, layer), block.parameters().norm1);
  MultiHeadAttentionSaved saved;
  (void)block.attention().forward(x, shape_.options, {.saved = &saved});
  const std::int64_t B = x.shape()[0], L = x.shape()[2], W = shape_.width, H = shape_.heads, E = W / H;
  Tensor out(DType::f32, {B, H, L, W});
  const View wo = block.attention().parameters().wo;  // [1, 1, W, H * E]
  for (std::int64_t h = 0; h < H; ++h) {
    MutableView part = out;
    part.data = out.data<float>() + h * L * W;
    part.shape[1] = 1;
    linear(slice(saved.out, 3, h * E, E), slice(wo, 3, h * E, E), {}, part);
  }
  return out;
}

void TinyModel::knock_out(std::int64_t layer, std::int64_t head) {
  Tensor& wo = blocks_[static_cast<std::size_t>(layer)].attention().parameters().wo;
  const std::int64_t columns = wo.shape()[3], E = columns / shape_.heads;
  for (std::int64_t o = 0; o < wo.shape()[2]; ++o) std::fill_n(wo.data<float>() + o * columns + head * E, E, 0.0F);
}

}  // namespace attend::labs
