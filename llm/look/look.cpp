// A finished run: what it has seen, and what can still be asked of what it kept.
#include "attend/llm/look.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <string>

#include "attend/error.hpp"
#include "llm/generate/sampler.hpp"
#include "llm/look/look_state.hpp"
#include "llm/look/predictions.hpp"
#include "llm/runtime/open_model.hpp"

namespace attend::llm {
namespace {

constexpr std::int64_t kLongestWeights = 2048;

std::vector<float> floats(const Tensor& tensor) {
  const auto* data = tensor.data<float>();
  return {data, data + tensor.size()};
}

// Of weights by position, the largest first.
std::vector<Attended> largest(const std::vector<float>& weights, std::int64_t count) {
  std::vector<Attended> all;
  for (std::size_t i = 0; i < weights.size(); ++i)
    if (weights[i] > 0) all.push_back({static_cast<std::int64_t>(i), weights[i]});
  const auto last = all.begin() + std::clamp<std::ptrdiff_t>(count, 0, std::ssize(all));
  std::partial_sort(all.begin(), last, all.end(), [](const Attended& a, const Attended& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.position < b.position;
  });
  all.erase(last, all.end());
  return all;
}

double length_of(const float* x, std::int64_t count) {
  double squares = 0;
  for (std::int64_t d = 0; d < count; ++d) squares += static_cast<double>(x[d]) * static_cast<double>(x[d]);
  return std::sqrt(squares);
}

// A lens on one head of a layer; the views in it are the run's own.
Lens lens_of(const Look::State& s, std::int64_t layer, std::int64_t head, std::optional<View> bias = {}) {
  const LookLayer& kept = s.kept_layer(layer);
  const ModelConfig& c = s.config();
  AttentionOptions options = s.head_options(layer, head);
  options.bias = bias;
  const View lse{DType::f32, kept.lse.data() + head, {1, 1, s.length(), 1}, {0, 1, c.heads, 1}};
  const std::int64_t kv = s.kv_head(head);
  return {s.head_view(kept.q, c.heads, head, c.head_dim),
          s.head_view(s.keys_of(layer, head), c.kv_heads, kv, c.head_dim), options,
          LensOptions{.lse = lse, .v = s.head_view(kept.v, c.kv_heads, kv, c.head_dim)}};
}

}  // namespace

// ---- state ----

const LookLayer& Look::State::kept_layer(std::int64_t layer) const {
  if (layer < 0 || layer >= config().layers)
    throw InvalidArgument("look: layer " + std::to_string(layer) + ", expected 0 to " +
                          std::to_string(config().layers - 1));
  const LookLayer& one = layers[static_cast<std::size_t>(layer)];
  if (!one.kept)
    throw InvalidArgument("look: layer " + std::to_string(layer) +
                          " was not kept; run again with LookOptions::keep and this layer in its layers");
  return one;
}

void Look::State::check_head(std::int64_t layer, std::int64_t head) const {
  if (layer < 0 || layer >= config().layers || head < 0 || head >= config().heads)
    throw InvalidArgument("look: head " + std::to_string(layer) + "." + std::to_string(head) +
                          ", expected layer 0 to " + std::to_string(config().layers - 1) + " and head 0 to " +
                          std::to_string(config().heads - 1));
}

std::int64_t Look::State::position(std::int64_t asked, const char* what) const {
  const std::int64_t position = asked == -1 ? length() - 1 : asked;
  if (position < 0 || position >= length())
    throw InvalidArgument(std::string("look: ") + what + " is " + std::to_string(asked) + ", expected 0 to " +
                          std::to_string(length() - 1));
  return position;
}

View Look::State::head_view(const std::vector<float>& rows, std::int64_t heads, std::int64_t head,
                            std::int64_t width) const {
  return {DType::f32, rows.data() + head * width, {1, 1, length(), width}, {0, width, heads * width, 1}};
}

const std::vector<float>& Look::State::keys_of(std::int64_t layer, std::int64_t head) const {
  const LookLayer& one = layers[static_cast<std::size_t>(layer)];
  return edits.of(layer, head).positions || one.k_plain.empty() ? one.k : one.k_plain;
}

AttentionOptions Look::State::head_options(std::int64_t layer, std::int64_t head) const {
  return edits.options_for(layers[static_cast<std::size_t>(layer)].options, layer, head, length(), prompt);
}

// ---- what a run is ----

const ModelInfo& Look::model() const {
  return state_->model->info;
}
const LookOptions& Look::options() const {
  return state_->options;
}
std::int64_t Look::length() const {
  return state_->length();
}
std::int64_t Look::layers() const {
  return state_->config().layers;
}
std::int64_t Look::heads() const {
  return state_->config().heads;
}
std::int64_t Look::kv_heads() const {
  return state_->config().kv_heads;
}
std::span<const LookToken> Look::tokens() const {
  return state_->tokens;
}
double Look::milliseconds() const {
  return state_->milliseconds;
}

bool Look::kept(std::int64_t layer) const {
  state_->check_head(layer, 0);
  return state_->layers[static_cast<std::size_t>(layer)].kept;
}

std::int64_t Look::bytes() const {
  std::size_t floats = state_->hidden.capacity() + state_->losses.capacity();
  for (const LookLayer& layer : state_->layers)
    for (const std::vector<float>* part : {&layer.q, &layer.k, &layer.v, &layer.k_plain, &layer.q_before,
                                           &layer.k_before, &layer.lse, &layer.statistics, &layer.means})
      floats += part->capacity();
  const std::size_t tokens = state_->ids.capacity() * sizeof(Token) + state_->tokens.capacity() * sizeof(LookToken);
  return static_cast<std::int64_t>(floats * sizeof(float) + tokens);
}

std::int64_t Look::cache_bytes() const {
  const ModelConfig& c = state_->config();
  return 2 * c.layers * c.kv_width() * length() * static_cast<std::int64_t>(sizeof(float));
}

// ---- statistics ----

std::vector<float> Look::statistic(std::int64_t layer, std::int64_t head, RowStatistic statistic) const {
  state_->check_head(layer, head);
  const LookLayer& one = state_->layers[static_cast<std::size_t>(layer)];
  if (!state_->options.statistics) throw InvalidArgument("look: this run has no statistics (LookOptions::statistics)");
  std::vector<float> rows(static_cast<std::size_t>(length()));
  for (std::int64_t i = 0; i < length(); ++i)
    rows[static_cast<std::size_t>(i)] = one.statistics[static_cast<std::size_t>((i * heads() + head) * kLookStatistics +
                                                                                static_cast<std::int64_t>(statistic))];
  return rows;
}

std::vector<double> Look::means(RowStatistic wanted) const {
  std::vector<double> result;
  for (std::int64_t layer = 0; layer < layers(); ++layer)
    for (std::int64_t head = 0; head < heads(); ++head) {
      double sum = 0;
      std::int64_t rows = 0;
      for (const float x : statistic(layer, head, wanted)) {
        if (!std::isfinite(x)) continue;
        sum += static_cast<double>(x);
        ++rows;
      }
      result.push_back(rows > 0 ? sum / static_cast<double>(rows) : std::nan(""));
    }
  return result;
}

// ---- predictions ----

std::vector<float> Look::next_logits(std::int64_t asked) const {
  const std::int64_t position = state_->position(asked, "position"), H = state_->config().hidden;
  if (!state_->config().causal && !state_->config().masked_head)
    throw InvalidArgument("look: " + state_->config().family + " predicts no tokens; it embeds texts");
  std::vector<float> logits(static_cast<std::size_t>(state_->config().vocabulary));
  state_->model->transformer.logits(view_of(std::as_const(state_->hidden).data() + position * H, {1, 1, 1, H}),
                                    view_of(logits.data(), {1, 1, 1, state_->config().vocabulary}));
  return logits;
}

std::vector<NextToken> Look::next_tokens(std::int64_t position, std::int64_t count) const {
  if (count < 0) throw InvalidArgument("look: count is " + std::to_string(count) + ", expected 0 or more");
  return likeliest(state_->model->tokenizer, probabilities(next_logits(position)), count);
}

std::span<const float> Look::losses() const {
  if (!state_->options.losses) throw InvalidArgument("look: this run has no losses (LookOptions::losses)");
  return state_->losses;
}

// ---- of kept layers ----

View Look::q(std::int64_t layer) const {
  const ModelConfig& c = state_->config();
  View view = state_->head_view(state_->kept_layer(layer).q, c.heads, 0, c.head_dim);
  view.shape[1] = c.heads;
  view.strides[1] = c.head_dim;
  return view;
}

View Look::k(std::int64_t layer) const {
  const ModelConfig& c = state_->config();
  View view = state_->head_view(state_->kept_layer(layer).k, c.kv_heads, 0, c.head_dim);
  view.shape[1] = c.kv_heads;
  view.strides[1] = c.head_dim;
  return view;
}

View Look::v(std::int64_t layer) const {
  View view = k(layer);
  view.data = state_->kept_layer(layer).v.data();
  return view;
}

View Look::lse(std::int64_t layer) const {
  return {DType::f32, state_->kept_layer(layer).lse.data(), {1, heads(), length(), 1}, {0, 1, heads(), 1}};
}

AttentionOptions Look::attention(std::int64_t layer, std::int64_t head) const {
  state_->check_head(layer, head);
  return state_->head_options(layer, head);
}

std::vector<float> Look::value_lengths(std::int64_t layer, std::int64_t kv_head) const {
  if (kv_head < 0 || kv_head >= kv_heads())
    throw InvalidArgument("look: KV head " + std::to_string(kv_head) + ", expected 0 to " +
                          std::to_string(kv_heads() - 1));
  const ModelConfig& c = state_->config();
  const LookLayer& one = state_->kept_layer(layer);
  std::vector<float> lengths;
  for (std::int64_t i = 0; i < length(); ++i)
    lengths.push_back(
        static_cast<float>(length_of(one.v.data() + i * c.kv_width() + kv_head * c.head_dim, c.head_dim)));
  return lengths;
}

PooledMap Look::map(std::int64_t layer, std::int64_t head, const MapOptions& options, Measure measure) const {
  state_->check_head(layer, head);
  if (measure == Measure::weight) return lens_of(*state_, layer, head).map({}, options);
  // weight x length = exp(score + log(length) - lse): a bias on the keys, with the LSE of the weights.
  std::vector<float> bias = value_lengths(layer, state_->kv_head(head));
  for (float& x : bias) x = std::log(x);
  const View view = view_of(std::as_const(bias).data(), {1, 1, 1, length()});
  return lens_of(*state_, layer, head, view).map({}, options);
}

std::vector<float> Look::weights(std::int64_t layer, std::int64_t head) const {
  if (length() > kLongestWeights)
    throw InvalidArgument("look: all weights of " + std::to_string(length()) + " tokens, expected at most " +
                          std::to_string(kLongestWeights) + "; a map pools them, zoom() shows a part");
  return zoom(layer, head, {});
}

std::vector<float> Look::zoom(std::int64_t layer, std::int64_t head, const LensArea& area) const {
  state_->check_head(layer, head);
  return floats(lens_of(*state_, layer, head).zoom({}, area));
}

std::vector<float> Look::row(std::int64_t layer, std::int64_t head, std::int64_t query) const {
  state_->check_head(layer, head);
  return floats(lens_of(*state_, layer, head).row({}, state_->position(query, "query")));
}

std::vector<float> Look::column(std::int64_t layer, std::int64_t head, std::int64_t key) const {
  state_->check_head(layer, head);
  return floats(lens_of(*state_, layer, head).column({}, state_->position(key, "key")));
}

std::vector<Attended> Look::top(std::int64_t layer, std::int64_t head, std::int64_t query, std::int64_t count) const {
  return largest(row(layer, head, query), count);
}

std::vector<Attended> Look::users(std::int64_t layer, std::int64_t head, std::int64_t key, std::int64_t count) const {
  return largest(column(layer, head, key), count);
}

std::vector<double> Look::received(std::int64_t layer, std::int64_t head) const {
  state_->check_head(layer, head);
  const std::vector<float> sums = floats(lens_of(*state_, layer, head).received({}));
  return {sums.begin(), sums.end()};
}

LookCell Look::cell(std::int64_t layer, std::int64_t head, std::int64_t query, std::int64_t key) const {
  state_->check_head(layer, head);
  query = state_->position(query, "query"), key = state_->position(key, "key");
  const ModelConfig& c = state_->config();
  const LookLayer& one = state_->kept_layer(layer);
  LookCell cell;
  cell.layer = layer, cell.head = head, cell.kv_head = state_->kv_head(head), cell.query = query, cell.key = key;
  cell.arithmetic = lens_of(*state_, layer, head).cell({}, query, key);
  const auto part = [&](const std::vector<float>& rows, std::int64_t width, std::int64_t at, std::int64_t h) {
    const float* from = rows.data() + at * width + h * c.head_dim;
    return std::vector<float>(from, from + c.head_dim);
  };
  if (state_->options.before_rotation) {
    cell.q_before = part(one.q_before, c.query_width(), query, head);
    cell.k_before = part(one.k_before, c.kv_width(), key, cell.kv_head);
  }
  cell.value_length = length_of(one.v.data() + key * c.kv_width() + cell.kv_head * c.head_dim, c.head_dim);
  return cell;
}

// ---- while generating ----

LookStep Look::append(Token token) {
  const ModelConfig& c = state_->config();
  if (!c.causal) throw InvalidArgument("look: " + c.family + " is an encoder, which reads a text as a whole");
  for (const LookLayer& layer : state_->layers)
    if (!layer.kept)
      throw InvalidArgument("look: a run goes on only where all layers are kept (LookOptions::keep and layers)");
  if (length() >= state_->model->context)
    throw InvalidArgument("look: the context of " + std::to_string(state_->model->context) + " tokens is full");
  check_token(c, token);
  LookStep step;
  step.token = token;
  step.text = state_->model->tokenizer.piece(token);
  step.position = length();
  const double before = state_->milliseconds;
  const Token one[] = {token};
  state_->run(one);
  step.milliseconds = state_->milliseconds - before;
  step.cache_bytes = cache_bytes();
  const std::vector<Token> stops = stop_tokens(state_->model->tokenizer, c, nullptr);
  step.ends = std::find(stops.begin(), stops.end(), token) != stops.end();
  return step;
}

LookStep Look::next(const Sampling& sampling) {
  check_sampling(sampling);
  const std::vector<float> logits = next_logits();
  const auto seen = std::span<const Token>(state_->ids);
  const Choice choice = sample(logits, sampling, seen, seen.subspan(static_cast<std::size_t>(state_->prompt)),
                               static_cast<std::uint64_t>(length() - state_->prompt));
  LookStep step = append(choice.token);
  step.probability = std::exp(choice.logprob);
  return step;
}

void Look::back(std::int64_t count) {
  if (count < 0) throw InvalidArgument("look: back by " + std::to_string(count) + ", expected 0 or more");
  state_->forget(std::max(state_->prompt, length() - count));
}

}  // namespace attend::llm
