// Forward of a transformer in training, on the building blocks of the engine.
#include "llm/train/network.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "attend/activation.hpp"
#include "attend/add.hpp"
#include "attend/cross_entropy.hpp"
#include "attend/dropout.hpp"
#include "attend/embedding.hpp"
#include "attend/error.hpp"
#include "attend/layer_norm.hpp"
#include "attend/linear.hpp"
#include "attend/rms_norm.hpp"
#include "base/elements.hpp"
#include "llm/model/layer_attention.hpp"

namespace attend::llm {

Network::Network(ModelConfig config, const NetworkOptions& options)
    : config_(std::move(config)),
      options_(options),
      layout_(config_),
      stored_(stored_type(options.compute)),
      compute_(options.compute),
      frequencies_(rope_frequencies(config_)),
      slopes_(position_slopes(config_)),
      parameters_(stored_, {1, 1, 1, layout_.count()}),
      gradients_(stored_, {1, 1, 1, options.frozen ? 0 : layout_.count()}),
      memory_(DType::f32, {1, 1, 1, buffer_bytes(config_, options_) / 4 + 1}),
      arena_(reinterpret_cast<char*>(memory_.data<float>())),
      buffers_(config_, options_, arena_) {
  balance_.resize(layout_.layers.size());
  if (compute_ != stored_) halves_ = Tensor(compute_, {1, 1, 1, layout_.count()});
}

void Network::changed() {
  if (compute_ != stored_) convert(parameters_, halves_);
}

// ---- views ----

MutableView Network::rows(const MutableView& buffer) const {
  MutableView view = buffer;
  view.shape[2] = T_;
  return view;
}
MutableView Network::heads(const MutableView& buffer, std::int64_t first, std::int64_t count) const {
  const std::int64_t D = config_.head_dim;
  MutableView view = columns_of(rows(buffer), first, D);
  view.shape[1] = count;
  view.strides[1] = D;
  return view;
}
MutableView Network::lse_of(const Activations& a) const {
  return {a.lse.dtype, a.lse.data, {1, config_.heads, T_, 1}, {0, a.lse.dim(), 1, 1}};
}

View Network::weight(std::size_t place, std::int64_t outputs) const {
  const Parameter& p = layout_.at(place);
  return part_of(halves_.empty() ? parameters_.view() : halves_.view(), p.offset, outputs, p.cols);
}
std::optional<View> Network::vector(ParameterPlace place, std::int64_t count) const {
  if (!place) return std::nullopt;
  return part_of(parameters_.view(), layout_.at(*place).offset, 1, count);
}
MutableView Network::gradient(std::size_t place, std::int64_t rows) {
  const Parameter& p = layout_.at(place);
  return part_of(gradients_.view(), p.offset, rows, p.cols);
}

// ---- forward ----

void Network::begin(const TrainingBatch& batch) {
  ran_ = false;
  T_ = std::ssize(batch.tokens);
  if (T_ > options_.tokens)
    throw InvalidArgument("training: a batch of " + std::to_string(T_) + " tokens, expected at most " +
                          std::to_string(options_.tokens));
  if (std::ssize(batch.targets) != T_)
    throw InvalidArgument("training: " + std::to_string(batch.targets.size()) + " targets, expected " +
                          std::to_string(T_) + ", one a token");
  if (batch.starts.empty() || batch.starts.front() != 0 || batch.starts.back() != T_)
    throw InvalidArgument("training: documents must begin at 0 and end at the last token");
  find_positions(batch);
  if (config_.positions == PositionKind::rope) rope_.fill(frequencies_, config_.rope_style, positions_);

  const auto table = [&](std::size_t place) {
    const Parameter& p = layout_.at(place);
    return part_of(parameters_.view(), p.offset, p.rows, p.cols);
  };
  const MutableView in = rows(buffers_.layers.front().in);
  const MutableView x = config_.embedding_norm ? rows(buffers_.embedded) : in;
  embedding(table(layout_.embedding), batch.tokens, x);
  if (layout_.positions || config_.positions == PositionKind::sinusoidal) {
    const MutableView places = rows(buffers_.layers.front().middle);  // written later
    if (layout_.positions)
      embedding(table(*layout_.positions), positions_, places);
    else
      sinusoidal(places, {.positions = positions_});
    add(x, places, x);
  }
  if (layout_.token_types) {  // one text: all of the first type
    View type = part_of(parameters_.view(), layout_.at(*layout_.token_types).offset, T_, config_.hidden);
    type.strides[2] = 0;
    add(x, type, x);
  }
  if (config_.embedding_norm) norm(layout_.embedding_norm, x, in);
}

void Network::find_positions(const TrainingBatch& batch) {
  is_spread_ = !batch.places.empty();
  if (is_spread_ && (spread_ == nullptr || batch.starts.size() != 2 || std::ssize(batch.places) != T_))
    throw InvalidArgument("training: a batch spread over processes must be one document with a place for each of its " +
                          std::to_string(T_) + " tokens, and attention that goes over processes");
  positions_ = batch.places;
  std::int64_t longest = 0;
  for (std::size_t d = 0; d + 1 < batch.starts.size(); ++d) {
    const std::int64_t length = batch.starts[d + 1] - batch.starts[d];
    if (length < 0) throw InvalidArgument("training: documents must follow one another");
    longest = std::max(longest, length);
    for (std::int64_t i = 0; i < length && !is_spread_; ++i) positions_.push_back(i);
  }
  if (is_spread_) longest = *std::max_element(positions_.begin(), positions_.end()) + 1;
  if (config_.positions == PositionKind::learned && longest > config_.context)
    throw InvalidArgument("training: a document of " + std::to_string(longest) + " tokens, expected at most " +
                          std::to_string(config_.context) + ", the positions that the model learns");
  mask_ = is_spread_ ? Mask() : segments(batch.starts);
  if (config_.causal) mask_ = mask_ & causal();
}

void Network::run_layers() {
  for (std::size_t n = 0; n < buffers_.layers.size(); ++n) {
    const Activations& a = buffers_.layers[n];
    attention_part(n, a);
    feed_forward_part(n, a);
    const bool is_last = n + 1 == buffers_.layers.size();
    const MutableView out = rows(is_last ? buffers_.last : buffers_.layers[n + 1].in);
    add_part(n, kFeedForward, rows(a.middle), config_.norm_after ? rows(a.sum2) : out);
    if (config_.norm_after) norm(layout_.layers[n].feed_forward_norm, rows(a.sum2), out);
  }
  if (layout_.final_norm.weight)
    norm(layout_.final_norm, rows(buffers_.last), rows(buffers_.hidden));
  else
    convert(rows(buffers_.last), rows(buffers_.hidden));
}

void Network::norm(const NormPlaces& places, const View& x, const MutableView& y) const {
  const View weight = *vector(places.weight, config_.hidden);
  if (config_.norm == NormKind::rms)
    rms_norm(x, weight, y, config_.norm_eps);
  else
    layer_norm(x, weight, vector(places.bias, config_.hidden), y, config_.norm_eps);
}

void Network::project(const LinearPlaces& places, const View& x, const MutableView& y) const {
  linear(x, weight(*places.weight, y.dim()), vector(places.bias, y.dim()), y);
}

AttentionOptions Network::attention_options(std::size_t n) const {
  std::optional<View> sinks = vector(layout_.layers[n].sinks, config_.heads);
  if (sinks) sinks->shape = {1, config_.heads, 1, 1}, sinks->strides = {0, 1, 0, 0};
  AttentionOptions options = layer_attention(config_, slopes_, sinks);
  options.mask = mask_;
  if (const std::int64_t width = config_.window_of(static_cast<std::int64_t>(n)); width > 0)
    options.mask = options.mask & window(width - 1, 0);
  return options;
}

// Up to the residual between the parts.
void Network::attention_part(std::size_t n, const Activations& a) {
  const ModelConfig& c = config_;
  const LayerPlaces& l = layout_.layers[n];
  const std::int64_t Q = c.query_width(), K = c.kv_width();
  const MutableView in = rows(a.in), normed = rows(a.normed1);
  if (c.norm_after)
    convert(in, normed);
  else
    norm(l.attention_norm, in, normed);
  const MutableView& raw = c.qk_norm ? a.qkv_raw : a.qkv;
  project(l.qkv, normed, rows(raw));
  const MutableView q = heads(a.qkv, 0, c.heads), k = heads(a.qkv, Q, c.kv_heads);
  if (c.qk_norm) {
    rms_norm(heads(raw, 0, c.heads), *vector(l.q_norm, c.head_dim), q, c.norm_eps);
    rms_norm(heads(raw, Q, c.kv_heads), *vector(l.k_norm, c.head_dim), k, c.norm_eps);
  }
  if (c.positions == PositionKind::rope) {
    rope(q, q, rope_);
    rope(k, k, rope_);
  }
  const MutableView v = heads(raw, Q + K, c.kv_heads), mixed = heads(a.mixed, 0, c.heads);
  if (is_spread_)
    spread_->forward(q, k, v, mixed, lse_of(a), attention_options(n));
  else
    attention(q, k, v, mixed, attention_options(n), {.lse = lse_of(a)});
  project(l.o, rows(a.mixed), rows(buffers_.part));
  add_part(n, kAttention, in, c.norm_after ? rows(a.sum1) : rows(a.middle));
  if (c.norm_after) norm(l.attention_norm, rows(a.sum1), rows(a.middle));
}

// Up to what it adds to the residual.
void Network::feed_forward_part(std::size_t n, const Activations& a) {
  const LayerPlaces& l = layout_.layers[n];
  const MutableView normed = rows(a.normed2);
  if (config_.norm_after)
    convert(rows(a.middle), normed);
  else
    norm(l.feed_forward_norm, rows(a.middle), normed);
  if (!l.experts.empty()) return experts_part(n, a);
  feed_forward(l.feed_forward, normed, part_of(a.wide, 0, T_, wide_columns(config_.feed_forward)), rows(buffers_.part));
}

// `wide` is kept for backward.
void Network::feed_forward(const FeedForwardPlaces& places, const View& x, const MutableView& wide,
                           const MutableView& y) const {
  project(places.in, x, wide);
  const MutableView active = part_of(buffers_.active, 0, wide.length(), wide.dim() / wide_columns(1));
  activate(wide, active);
  project(places.down, active, y);
}

void Network::activate(const MutableView& wide, const MutableView& active) const {
  const std::int64_t F = active.dim();
  if (config_.gated)
    gated_activation(config_.activation, columns_of(wide, 0, F), columns_of(wide, F, F), active);
  else
    activation(config_.activation, wide, active);
}

Dropout Network::dropout_of(std::size_t n, Part part) const {
  return {options_.dropout, seed_ ^ ((2 * n + static_cast<std::size_t>(part) + 1) * 0x9E3779B97F4A7C15ULL)};
}

// sum = residual + part, which is dropped in places first.
void Network::add_part(std::size_t n, Part part, const MutableView& residual, const MutableView& sum) const {
  const MutableView x = rows(buffers_.part);
  if (dropping_) dropout(x, x, dropout_of(n, part));
  add(residual, x, sum);
}

View Network::head() const {
  const Parameter& p = layout_.at(layout_.head.value_or(layout_.embedding));
  return part_of(parameters_.view(), p.offset, p.rows, p.cols);
}

View Network::run(const TrainingBatch& batch, std::uint64_t seed, bool training) {
  seed_ = seed, dropping_ = training && options_.dropout > 0;
  begin(batch);
  run_layers();
  ran_ = true;
  return rows(buffers_.hidden);
}

double Network::sum_of_losses() const {
  double sum = 0;
  for (std::int64_t t = 0; t < T_; ++t) sum += load_element(stored_, buffers_.loss.data, t);
  return sum;
}

double Network::forward(const TrainingBatch& batch, std::uint64_t seed, bool training) {
  run(batch, seed, training);
  if (config_.masked_head) masked_head();
  cross_entropy(head_rows(), head_weight(), batch.targets, rows(buffers_.loss), {kIgnored});
  return sum_of_losses();
}

}  // namespace attend::llm
