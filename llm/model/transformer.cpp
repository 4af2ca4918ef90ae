// The forward pass: embeddings, then attention and feed-forward per layer, then the final norm.
#include "llm/model/transformer.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "attend/activation.hpp"
#include "attend/add.hpp"
#include "attend/embedding.hpp"
#include "attend/error.hpp"
#include "attend/layer_norm.hpp"
#include "attend/positions.hpp"
#include "attend/rms_norm.hpp"
#include "attend/threads.hpp"
#include "llm/model/layer_attention.hpp"

namespace attend::llm {
namespace {

View rows_view(const float* x, std::int64_t rows, std::int64_t width) {
  return view_of(x, {1, 1, rows, width});
}
MutableView rows_view(float* x, std::int64_t rows, std::int64_t width) {
  return view_of(x, {1, 1, rows, width});
}

Projection projection(const Linear& l, float* y, std::int64_t rows) {
  Projection p{&l.weight, {}, rows_view(y, rows, l.weight.out())};
  if (!l.bias.empty()) p.bias = l.bias.view();
  return p;
}

// Rows [batch, length, heads, dim] in memory, seen as [batch, heads, length, dim].
template <class Void>
BasicView<Void> heads_view(Void* data, DType dtype, std::int64_t batch, std::int64_t length, std::int64_t heads,
                           std::int64_t dim) {
  const Shape shape{batch, heads, length, dim};
  return {dtype, data, shape, length_major_strides(shape)};
}

// A table of rows as long as `width`.
View table_view(const Tensor& table, std::int64_t width) {
  return rows_view(table.data<float>(), table.size() / width, width);
}

void add_rows(float* x, const float* y, std::int64_t rows, std::int64_t width) {  // x += y
  add(rows_view(x, rows, width), rows_view(y, rows, width), rows_view(x, rows, width));
}

void narrow(const float* x, void* y, std::int64_t count, DType dtype) {  // to f16 or bf16
  const Shape shape{1, 1, 1, count};
  convert(view_of(x, shape), {dtype, y, shape, contiguous_strides(shape)});
}

std::int64_t bytes_of(const FeedForward& f) {
  return f.gate.weight.bytes() + f.up.weight.bytes() + f.down.weight.bytes();
}

}  // namespace

// What the layers run on: sequences of a cache, or whole sequences without one.
struct Transformer::Batch {
  std::int64_t rows = 0;
  std::span<const Continuation> continuations{};
  ModelCache* cache = nullptr;
  Mask mask{};
  const AttentionHook* hook = nullptr;  // stands in for attention
};

Transformer::Transformer(ModelConfig config, ModelWeights weights)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      frequencies_(rope_frequencies(config_)),
      slopes_(position_slopes(config_)) {
  for (std::size_t i = 0; i < weights_.rope_divisors.size(); ++i)
    frequencies_.per_position[i] /= weights_.rope_divisors[i];
}

Transformer::Transformer(const ModelFiles& files, const LoadProgress& progress)
    : Transformer(files.config(), load_weights(files, progress)) {}

Tokenizer load_tokenizer(const ModelFiles& files) {
  if (files.gguf() != nullptr) return tokenizer_from_gguf(*files.gguf(), files.path().string());
  const bool folder = std::filesystem::is_directory(files.path());
  return tokenizer_from_folder(folder ? files.path() : files.path().parent_path());
}

std::int64_t Transformer::bytes() const {
  std::int64_t sum = weights_.embedding.bytes() + weights_.head.bytes() + weights_.head_dense.weight.bytes();
  for (const Layer& l : weights_.layers) {
    sum += l.q.weight.bytes() + l.k.weight.bytes() + l.v.weight.bytes() + l.o.weight.bytes() + l.router.weight.bytes() +
           bytes_of(l.feed_forward);
    for (const FeedForward& f : l.experts) sum += bytes_of(f);
    for (const FeedForward& f : l.shared) sum += bytes_of(f);
  }
  return sum;
}

void Transformer::norm(const Norm& n, const float* x, float* y, std::int64_t rows) const {
  const View from = rows_view(x, rows, config_.hidden);
  const MutableView to = rows_view(y, rows, config_.hidden);
  if (config_.norm == NormKind::rms) return rms_norm(from, n.weight, to, config_.norm_eps);
  layer_norm(from, n.weight, n.bias.empty() ? std::nullopt : std::optional<View>(n.bias), to, config_.norm_eps);
}

// Embeddings of tokens at their positions into x_.
void Transformer::begin(std::span<const Token> tokens, std::span<const std::int64_t> positions, bool places) {
  const std::int64_t T = std::ssize(tokens), H = config_.hidden;
  for (const Token token : tokens)
    if (token < 0 || token >= config_.vocabulary)
      throw InvalidArgument("model: a token is " + std::to_string(token) + ", expected 0 to " +
                            std::to_string(config_.vocabulary - 1));
  const bool learned = places && config_.positions == PositionKind::learned;
  for (const std::int64_t position : positions)
    if (learned && position >= config_.context)
      throw InvalidArgument("model: position " + std::to_string(position) + " lies behind the " +
                            std::to_string(config_.context) + " positions the model has learnt");
  float* x = x_.of(T * H);
  const MutableView rows = rows_view(x, T, H);
  embedding(weights_.embedding, std::vector<std::int64_t>(tokens.begin(), tokens.end()), rows);
  if (learned || (places && config_.positions == PositionKind::sinusoidal)) {
    const MutableView added = rows_view(normed_.of(T * H), T, H);
    if (learned)
      embedding(table_view(weights_.positions, H), positions, added);
    else
      sinusoidal(added, {.positions = {positions.begin(), positions.end()}});
    add(rows, added, rows);
  }
  if (!weights_.token_types.empty()) {  // one text: all of the first type
    const View type{DType::f32, weights_.token_types.data<float>(), {1, 1, T, H}, {0, 0, 0, 1}};
    add(rows, type, rows);
  }
  if (!weights_.embedding_norm.weight.empty()) norm(weights_.embedding_norm, x, x, T);
  if (config_.positions == PositionKind::rope) rotation_.fill(frequencies_, config_.rope_style, positions);
}

View Transformer::forward(std::span<const Token> tokens, std::span<const Continuation> continuations,
                          ModelCache& cache) {
  if (!config_.causal) throw InvalidArgument("model: " + config_.family + " is not causal: encode() runs it");
  std::vector<std::int64_t> positions;
  std::int64_t pages = 0;
  for (const Continuation& c : continuations) {
    if (c.count < 0) throw InvalidArgument("model: a continuation of " + std::to_string(c.count) + " tokens");
    for (const Continuation* other = continuations.data(); other != &c; ++other)
      if (other->sequence == c.sequence)
        throw InvalidArgument("model: sequence " + std::to_string(c.sequence) + " is continued twice in one call");
    if (cache.slide(c.sequence)) rotate_sinks(c.sequence, cache);
    for (std::int64_t i = 0; i < c.count; ++i) positions.push_back(cache.length(c.sequence) + i);
    pages += cache.pages_to_append(c.sequence, c.count);
  }
  if (positions.size() != tokens.size())
    throw InvalidArgument("model: " + std::to_string(tokens.size()) + " tokens, but continuations of " +
                          std::to_string(positions.size()));
  if (pages > cache.free_pages())
    throw OutOfPages("model: the cache has " + std::to_string(cache.free_pages()) + " free pages of " +
                     std::to_string(PagedKvCache::kPageTokens) + " tokens, this needs " + std::to_string(pages));
  begin(tokens, positions);
  run_layers({std::ssize(tokens), continuations, &cache, {}});
  return rows_view(static_cast<const float*>(x_.floats.data()), std::ssize(tokens), config_.hidden);
}

View Transformer::encode(std::span<const Token> tokens, std::span<const std::int64_t> lengths) {
  std::vector<std::int64_t> positions, starts{0};
  for (const std::int64_t length : lengths) {
    if (length < 0) throw InvalidArgument("model: a sequence of " + std::to_string(length) + " tokens");
    for (std::int64_t i = 0; i < length; ++i) positions.push_back(i);
    starts.push_back(std::ssize(positions));
  }
  if (positions.size() != tokens.size())
    throw InvalidArgument("model: " + std::to_string(tokens.size()) + " tokens, but lengths that sum to " +
                          std::to_string(positions.size()));
  begin(tokens, positions);
  Batch batch{std::ssize(tokens), {}, nullptr, segments(starts)};
  if (config_.causal) batch.mask = batch.mask & causal();
  run_layers(batch);
  return rows_view(static_cast<const float*>(x_.floats.data()), std::ssize(tokens), config_.hidden);
}

View Transformer::run(std::span<const Token> tokens, std::int64_t first, bool places, const AttentionHook& hook) {
  std::vector<std::int64_t> positions(tokens.size());
  std::iota(positions.begin(), positions.end(), first);
  begin(tokens, positions, places);
  run_layers({std::ssize(tokens), {}, nullptr, {}, &hook});
  return rows_view(static_cast<const float*>(x_.floats.data()), std::ssize(tokens), config_.hidden);
}

void Transformer::release_working_memory() {
  for (Buffer* buffer : {&x_, &normed_, &q_, &k_, &v_, &mixed_, &out_, &gate_, &up_, &half_q_, &half_k_, &half_v_,
                         &half_mixed_, &router_, &gathered_, &expert_out_})
    *buffer = {};
}

std::vector<float> Transformer::embed(std::span<const Token> tokens, std::span<const std::int64_t> lengths) {
  const View rows = encode(tokens, lengths);
  const auto* x = static_cast<const float*>(rows.data);
  const std::int64_t H = config_.hidden;
  std::vector<float> result(lengths.size() * static_cast<std::size_t>(H));
  std::int64_t first = 0;
  for (std::size_t s = 0; s < lengths.size(); first += lengths[s++]) {
    if (lengths[s] == 0) continue;
    const std::int64_t used = config_.pooling == PoolingKind::first_token ? 1 : lengths[s];
    float* y = result.data() + s * static_cast<std::size_t>(H);
    double squares = 0;
    for (std::int64_t j = 0; j < H; ++j) {
      double sum = 0;
      float most = x[first * H + j];
      for (std::int64_t i = 0; i < used; ++i) {
        sum += static_cast<double>(x[(first + i) * H + j]);
        most = std::max(most, x[(first + i) * H + j]);
      }
      y[j] = config_.pooling == PoolingKind::max ? most : static_cast<float>(sum / static_cast<double>(used));
      squares += static_cast<double>(y[j]) * static_cast<double>(y[j]);
    }
    const double length = std::sqrt(squares);
    if (length > 0)
      for (std::int64_t j = 0; j < H; ++j) y[j] = static_cast<float>(static_cast<double>(y[j]) / length);
  }
  return result;
}

void Transformer::run_layers(const Batch& batch) {
  const std::int64_t T = batch.rows, H = config_.hidden;
  if (T == 0) return;
  for (std::int64_t n = 0; n < config_.layers; ++n) {
    const Layer& layer = weights_.layers[static_cast<std::size_t>(n)];
    attend_layer(layer, n, batch);
    feed_forward_layer(layer, T);
  }
  float* x = x_.of(T * H);
  if (!weights_.final_norm.weight.empty()) norm(weights_.final_norm, x, x, T);
}

// x = x + o(attention(norm(x))), or x = norm(x + o(attention(x))).
void Transformer::attend_layer(const Layer& layer, std::int64_t n, const Batch& batch) {
  const ModelConfig& c = config_;
  const std::int64_t T = batch.rows, Q = c.query_width(), K = c.kv_width();
  float *x = x_.of(T * c.hidden), *q = q_.of(T * Q), *k = k_.of(T * K), *v = v_.of(T * K);
  const float* in = x;
  if (!c.norm_after) {
    norm(layer.attention_norm, x, normed_.of(T * c.hidden), T);
    in = normed_.floats.data();
  }
  const Projection qkv[] = {projection(layer.q, q, T), projection(layer.k, k, T), projection(layer.v, v, T)};
  project(rows_view(in, T, c.hidden), qkv);
  if (c.qk_norm) {
    rms_norm(rows_view(q, T * c.heads, c.head_dim), layer.q_norm, rows_view(q, T * c.heads, c.head_dim), c.norm_eps);
    rms_norm(rows_view(k, T * c.kv_heads, c.head_dim), layer.k_norm, rows_view(k, T * c.kv_heads, c.head_dim),
             c.norm_eps);
  }
  const bool rotates = c.positions == PositionKind::rope;
  if (batch.hook != nullptr)
    (*batch.hook)({n, T, q, k, v, rotates ? &rotation_ : nullptr, options_of(layer), mixed_.of(T * Q)});
  else
    mix(layer, n, batch);
  float* out = out_.of(T * c.hidden);
  const Projection o[] = {projection(layer.o, out, T)};
  project(rows_view(mixed_.floats.data(), T, Q), o);
  add_rows(x, out, T, c.hidden);
  if (c.norm_after) norm(layer.attention_norm, x, x, T);
}

// Attention with q_, k_ and v_, which it rotates, into mixed_.
void Transformer::mix(const Layer& layer, std::int64_t n, const Batch& batch) {
  const ModelConfig& c = config_;
  const std::int64_t T = batch.rows, Q = c.query_width(), K = c.kv_width();
  float *q = q_.of(T * Q), *k = k_.of(T * K), *v = v_.of(T * K), *mixed = mixed_.of(T * Q);
  if (batch.cache != nullptr && batch.cache->sink_tokens() > 0) keep_sinks(n, batch);
  if (c.positions == PositionKind::rope) {
    rotate(q, T, c.heads);
    rotate(k, T, c.kv_heads);
  }
  const auto view = [&](const float* data, std::int64_t heads) {
    return heads_view<const void>(data, DType::f32, 1, T, heads, c.head_dim);
  };
  if (observer_) observer_(n, view(q, c.heads), view(k, c.kv_heads), view(v, c.kv_heads));
  if (batch.cache != nullptr) return cached_attention(layer, n, batch);
  AttentionOptions options = options_of(layer);
  options.mask = batch.mask;
  if (const std::int64_t width = c.window_of(n); width > 0) options.mask = options.mask & window(width - 1, 0);
  attention(view(q, c.heads), view(k, c.kv_heads), view(v, c.kv_heads),
            heads_view<void>(mixed, DType::f32, 1, T, c.heads, c.head_dim), options);
}

AttentionOptions Transformer::options_of(const Layer& layer) const {
  return layer_attention(config_, slopes_, layer.sinks.empty() ? std::nullopt : std::optional<View>(layer.sinks));
}

// Rows [rows, heads, head_dim] at the positions of rotation_.
void Transformer::rotate(float* x, std::int64_t rows, std::int64_t heads) const {
  const MutableView view = heads_view<void>(x, DType::f32, 1, rows, heads, config_.head_dim);
  rope(view, view, rotation_);
}

// A stream keeps its first tokens' keys as they are before the rotation.
void Transformer::keep_sinks(std::int64_t n, const Batch& batch) {
  const std::int64_t K = config_.kv_width(), sinks = batch.cache->sink_tokens();
  std::int64_t row = 0;
  for (const Continuation& part : batch.continuations) {
    const std::int64_t first = batch.cache->layer(n).length(part.sequence);
    const std::int64_t count = std::min(part.count, std::max<std::int64_t>(0, sinks - first));
    float* kept = batch.cache->sinks_of(part.sequence).data() + 2 * n * sinks * K;
    std::copy_n(k_.floats.data() + row * K, count * K, kept + first * K);
    std::copy_n(v_.floats.data() + row * K, count * K, kept + (sinks + first) * K);
    row += part.count;
  }
}

// Tokens behind a stream's first ones are gone: these move up to stand right before the rest.
void Transformer::rotate_sinks(std::int64_t sequence, ModelCache& cache) {
  const std::int64_t K = config_.kv_width(), D = config_.head_dim, sinks = cache.sink_tokens();
  const DType dtype = cache.dtype();
  std::vector<std::int64_t> positions(static_cast<std::size_t>(sinks));
  std::iota(positions.begin(), positions.end(), cache.forgotten(sequence));
  rotation_.fill(frequencies_, config_.rope_style, positions);
  for (std::int64_t n = 0; n < config_.layers; ++n) {
    const float* kept = cache.sinks_of(sequence).data() + 2 * n * sinks * K;
    float* k = k_.of(sinks * K);
    std::copy_n(kept, sinks * K, k);
    rotate(k, sinks, config_.kv_heads);
    const void *keys = k, *values = kept + sinks * K;
    if (dtype != DType::f32) {
      narrow(k, half_k_.of(sinks * K), sinks * K, dtype);
      narrow(kept + sinks * K, half_v_.of(sinks * K), sinks * K, dtype);
      keys = half_k_.floats.data(), values = half_v_.floats.data();
    }
    const auto view = [&](const void* x) { return heads_view<const void>(x, dtype, 1, sinks, config_.kv_heads, D); };
    cache.layer(n).replace(sequence, 0, view(keys), view(values));
  }
}

// Appends k_ and v_ to the layer's cache and attends with q_ into mixed_.
void Transformer::cached_attention(const Layer& layer, std::int64_t n, const Batch& batch) {
  const ModelConfig& c = config_;
  const std::int64_t T = batch.rows, Q = c.query_width(), K = c.kv_width(), D = c.head_dim;
  PagedKvCache& cache = batch.cache->layer(n);
  const DType dtype = batch.cache->dtype();
  char *q = reinterpret_cast<char*>(q_.of(T * Q)), *k = reinterpret_cast<char*>(k_.of(T * K)),
       *v = reinterpret_cast<char*>(v_.of(T * K)), *mixed = reinterpret_cast<char*>(mixed_.of(T * Q));
  if (dtype != DType::f32) {
    const auto narrowed = [&](char*& x, Buffer& half, std::int64_t count) {
      float* y = half.of((count + 1) / 2);
      narrow(reinterpret_cast<const float*>(x), y, count, dtype);
      x = reinterpret_cast<char*>(y);
    };
    narrowed(q, half_q_, T * Q);
    narrowed(k, half_k_, T * K);
    narrowed(v, half_v_, T * K);
    mixed = reinterpret_cast<char*>(half_mixed_.of((T * Q + 1) / 2));
  }
  AttentionOptions options = options_of(layer);
  options.mask = causal();
  if (const std::int64_t width = c.window_of(n); width > 0 && batch.cache->options().stream == 0)
    options.mask = options.mask & window(width - 1, 0);
  const std::int64_t size = size_of(dtype);
  std::int64_t row = 0;
  for (const Continuation& part : batch.continuations) {
    const auto view = [&](const char* data) {
      return heads_view<const void>(data + row * K * size, dtype, 1, part.count, c.kv_heads, D);
    };
    cache.append(part.sequence, view(k), view(v));
    row += part.count;
  }
  // Neighbours with as many tokens each go together.
  row = 0;
  std::vector<std::int64_t> sequences;
  for (std::size_t first = 0, last = 0; first < batch.continuations.size(); first = last) {
    const std::int64_t count = batch.continuations[first].count;
    sequences.clear();
    for (; last < batch.continuations.size() && batch.continuations[last].count == count; ++last)
      sequences.push_back(batch.continuations[last].sequence);
    const std::int64_t B = std::ssize(sequences);
    attention(heads_view<const void>(q + row * Q * size, dtype, B, count, c.heads, D), cache, sequences,
              heads_view<void>(mixed + row * Q * size, dtype, B, count, c.heads, D), options);
    row += B * count;
  }
  if (dtype != DType::f32) convert({dtype, mixed, {1, 1, T, Q}, {0, 0, Q, 1}}, rows_view(mixed_.of(T * Q), T, Q));
}

// x = x + f(norm(x)), or x = norm(x + f(x)).
void Transformer::feed_forward_layer(const Layer& layer, std::int64_t rows) {
  const std::int64_t H = config_.hidden;
  float *x = x_.of(rows * H), *out = out_.of(rows * H);
  const float* in = x;
  if (!config_.norm_after) {
    norm(layer.feed_forward_norm, x, normed_.of(rows * H), rows);
    in = normed_.floats.data();
  }
  if (layer.experts.empty())
    feed_forward(layer.feed_forward, in, rows, out);
  else
    experts(layer, in, rows, out);
  add_rows(x, out, rows, H);
  if (config_.norm_after) norm(layer.feed_forward_norm, x, x, rows);
}

void Transformer::feed_forward(const FeedForward& f, const float* x, std::int64_t rows, float* y) {
  const std::int64_t H = config_.hidden, width = f.up.weight.out();
  float* up = up_.of(rows * width);
  if (config_.gated) {
    float* gate = gate_.of(rows * width);
    const Projection both[] = {projection(f.gate, gate, rows), projection(f.up, up, rows)};
    project(rows_view(x, rows, H), both);
    const MutableView product = rows_view(up, rows, width);
    gated_activation(config_.activation, rows_view(gate, rows, width), product, product);
  } else {
    const Projection one[] = {projection(f.up, up, rows)};
    project(rows_view(x, rows, H), one);
    activation(config_.activation, rows_view(up, rows, width), rows_view(up, rows, width));
  }
  const Projection down[] = {projection(f.down, y, rows)};
  project(rows_view(static_cast<const float*>(up), rows, width), down);
}

// Each token goes through the experts its router likes best, weighed by the softmax over all of them. Experts add to a
// token in rising order, so its bits do not depend on who else is there.
void Transformer::experts(const Layer& layer, const float* x, std::int64_t rows, float* y) {
  const std::int64_t H = config_.hidden, E = config_.experts.count, used = config_.experts.used;
  float* scores = router_.of(rows * E);
  const Projection router[] = {projection(layer.router, scores, rows)};
  project(rows_view(x, rows, H), router);
  std::vector<std::int64_t> order(static_cast<std::size_t>(E));
  for (std::int64_t r = 0; r < rows; ++r) {  // scores become weights; those not used, zero
    float* s = scores + r * E;
    const float most = *std::max_element(s, s + E);
    float sum = 0;
    for (std::int64_t e = 0; e < E; ++e) {
      s[e] = std::exp(s[e] - most);
      if (std::isnan(s[e])) s[e] = 0;  // nothing can be sorted by it
      sum += s[e];
    }
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(),
              [&](std::int64_t a, std::int64_t b) { return s[a] != s[b] ? s[a] > s[b] : a < b; });
    if (config_.experts.normalised) {
      sum = 0;
      for (std::int64_t n = 0; n < used; ++n) sum += s[order[static_cast<std::size_t>(n)]];
    }
    for (std::int64_t n = 0; n < E; ++n) {
      float& weight = s[order[static_cast<std::size_t>(n)]];
      weight = n < used ? weight / sum : 0.0F;
    }
  }
  std::fill_n(y, rows * H, 0.0F);
  float *gathered = gathered_.of(rows * H), *out = expert_out_.of(rows * H);
  std::vector<std::int64_t> chosen;
  for (std::int64_t e = 0; e < E; ++e) {
    chosen.clear();
    for (std::int64_t r = 0; r < rows; ++r)
      if (scores[r * E + e] > 0) chosen.push_back(r);
    if (chosen.empty()) continue;
    for (std::size_t i = 0; i < chosen.size(); ++i)
      std::copy_n(x + chosen[i] * H, H, gathered + static_cast<std::int64_t>(i) * H);
    feed_forward(layer.experts[static_cast<std::size_t>(e)], gathered, std::ssize(chosen), out);
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      const float weight = scores[chosen[i] * E + e];
      for (std::int64_t j = 0; j < H; ++j) y[chosen[i] * H + j] += weight * out[static_cast<std::int64_t>(i) * H + j];
    }
  }
  for (const FeedForward& shared : layer.shared) {
    feed_forward(shared, x, rows, out);
    add_rows(y, out, rows, H);
  }
}

void Transformer::logits(View rows, MutableView out) const {
  const Weight& head = weights_.head.out() > 0 ? weights_.head : weights_.embedding;
  if (!config_.masked_head) {
    const Projection p[] = {{&head, {}, out}};
    return project(rows, p);
  }
  Tensor made(DType::f32, rows.shape);
  const Projection dense[] = {{&weights_.head_dense.weight, weights_.head_dense.bias.view(), made.view()}};
  project(rows, dense);
  activation(config_.activation, made, made);
  norm(weights_.head_norm, made.data<float>(), made.data<float>(), rows.length());
  const Projection p[] = {{&head, weights_.head_bias.view(), out}};
  project(made, p);
}

}  // namespace attend::llm
