// Runs tokens through a model with its switches, keeping what is asked for.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "attend/error.hpp"
#include "attend/rope.hpp"
#include "io/readable.hpp"
#include "llm/generate/perplexity.hpp"
#include "llm/look/look_state.hpp"
#include "llm/model/plan.hpp"
#include "llm/runtime/file_errors.hpp"
#include "llm/runtime/memory.hpp"
#include "llm/runtime/open_model.hpp"

namespace attend::llm {
namespace {

// `count` heads from `first` on of rows [rows, heads, dim], as [1, count, rows, dim].
template <class Void, class T>
BasicView<Void> heads_of(T* data, std::int64_t rows, std::int64_t heads, std::int64_t dim, std::int64_t first,
                         std::int64_t count) {
  return {DType::f32, data + first * dim, {1, count, rows, dim}, {0, dim, heads * dim, 1}};
}

// Room for as many numbers. Rows that come one by one grow it by an eighth, not by a factor of two: kept rows are most
// of what an explorer holds.
template <class T>
void make_room(std::vector<T>& rows, std::int64_t count) {
  const auto size = static_cast<std::size_t>(count);
  if (size > rows.capacity()) rows.reserve(rows.empty() ? size : size + size / kGrowth);
}

void add_rows(std::vector<float>& to, const float* from, std::int64_t count) {
  make_room(to, std::ssize(to) + count);
  to.insert(to.end(), from, from + count);
}

void resize_rows(std::vector<float>& rows, std::int64_t count) {
  make_room(rows, count);
  rows.resize(static_cast<std::size_t>(count));
}

std::string bytes(std::int64_t n) {
  return io::readable_bytes(static_cast<double>(n));
}

bool is_kept(const LookOptions& options, std::int64_t layer) {
  return options.keep && (options.layers.empty() ||
                          std::find(options.layers.begin(), options.layers.end(), layer) != options.layers.end());
}

LookMemory plan(const ModelConfig& c, std::int64_t tokens, const LookOptions& options) {
  LookMemory memory;
  const std::int64_t Q = c.query_width(), K = c.kv_width();
  const Edits edits(c, options.switches);
  std::int64_t numbers = c.hidden + (options.losses ? 1 : 0);
  for (std::int64_t n = 0; n < c.layers; ++n) {
    if (!is_kept(options, n)) continue;
    const bool both = !edits.all_rotate(n) && !edits.none_rotates(n);  // keys are kept with and without rotation
    numbers += Q + 2 * K + c.heads + (options.before_rotation ? Q + K : 0) + (both ? K : 0);
  }
  memory.kept = tokens * (4 * numbers + kTokenBytes);
  if (!options.switches.empty()) memory.kept += 4 * c.layers * Q;  // means of outputs
  if (options.statistics) memory.statistics = 4 * tokens * c.layers * c.heads * kLookStatistics;
  memory.working = working_memory(c, tokens, options.losses ? kLogitRows : 1, DType::f32);
  return memory;
}

LookMemory plan_within_limit(const ModelConfig& c, std::int64_t tokens, const LookOptions& options) {
  if (options.memory_limit < 0)
    throw InvalidArgument("look: memory_limit is " + std::to_string(options.memory_limit) +
                          ", expected 0 or more bytes");
  LookMemory memory = plan(c, tokens, options);
  memory.limit = options.memory_limit;
  if (memory.limit == 0) memory.limit = available_memory().value_or(std::numeric_limits<std::int64_t>::max()) / 2;
  return memory;
}

}  // namespace

LookMemory plan_look(const Model& model, std::int64_t tokens, const LookOptions& options) {
  if (tokens < 0) throw InvalidArgument("look: tokens is " + std::to_string(tokens) + ", expected 0 or more");
  return plan_within_limit(LookAccess::state(model).config(), tokens, options);
}

std::int64_t Look::bytes_with(std::int64_t more) const {
  const LookMemory grown = plan(state_->config(), length() + more, state_->options);
  return std::max(bytes(), (grown.kept + grown.statistics) / kGrowth * (kGrowth + 1));
}

void check_token(const ModelConfig& config, Token token) {
  if (token < 0 || token >= config.vocabulary)
    throw InvalidArgument("look: a token is " + std::to_string(token) + ", expected 0 to " +
                          std::to_string(config.vocabulary - 1));
}

void check_look(const ModelState& model, std::span<const Token> tokens, const LookOptions& options) {
  const ModelConfig& c = model.config();
  if (tokens.empty()) throw InvalidArgument("look: the text has no tokens, expected at least one");
  if (std::ssize(tokens) > model.context)
    throw InvalidArgument("look: the text has " + std::to_string(tokens.size()) +
                          " tokens, and the model was opened for a context of " + std::to_string(model.context));
  for (const Token token : tokens) check_token(c, token);
  if (options.sinks < 0)
    throw InvalidArgument("look: sinks is " + std::to_string(options.sinks) + ", expected 0 or more");
  if (options.losses && !c.causal) throw InvalidArgument("look: losses are of models that predict the next token");
  for (const std::int64_t layer : options.layers)
    if (layer < 0 || layer >= c.layers)
      throw InvalidArgument("look: layer " + std::to_string(layer) + " is to be kept, and the model has layers 0 to " +
                            std::to_string(c.layers - 1));
  const LookMemory memory = plan_within_limit(c, std::ssize(tokens), options);
  if (memory.total() > memory.limit)
    throw std::runtime_error("look: " + std::to_string(tokens.size()) + " tokens take " + bytes(memory.total()) +
                             " (queries, keys and values " + bytes(memory.kept) + ", statistics " +
                             bytes(memory.statistics) + ", work " + bytes(memory.working) +
                             "), more than the limit of " + bytes(memory.limit) +
                             "; keep fewer layers (layers), raise memory_limit, or take a shorter text");
}

Look::State::State(std::shared_ptr<ModelState> of, LookOptions asked)
    : model(std::move(of)),
      options(std::move(asked)),
      edits(config(), options.switches),
      layers(static_cast<std::size_t>(config().layers)) {
  for (std::int64_t n = 0; n < config().layers; ++n) layers[static_cast<std::size_t>(n)].kept = is_kept(options, n);
}

void Look::State::run(std::span<const Token> more) {
  const auto start = std::chrono::steady_clock::now();
  const std::int64_t first = length();
  // A long text is read in one pass: what that works with is more than what it keeps.
  const auto give_back = [&] {
    if (std::ssize(more) > kTokensPerStep) model->transformer.release_working_memory();
  };
  make_room(ids, first + std::ssize(more));
  ids.insert(ids.end(), more.begin(), more.end());
  if (first == 0) prompt = length();
  try {
    const AttentionHook hook = [this](const LayerAttention& call) { attend(call); };
    const View rows = with_file_errors(
        model->info.path.string(), [&] { return model->transformer.run(more, first, edits.adds_positions(), hook); });
    add_rows(hidden, static_cast<const float*>(rows.data), std::ssize(more) * config().hidden);
    make_room(tokens, length());
    for (const Token id : more) {
      LookToken& token = tokens.emplace_back();
      token = {id, std::string(model->tokenizer.piece(id)), model->tokenizer.is_special(id)};
    }
    if (options.losses) find_losses(first);
  } catch (...) {  // stopped, or out of memory: as it was before
    forget(first);
    give_back();
    throw;
  }
  give_back();
  milliseconds += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

void Look::State::find_losses(std::int64_t first) {
  const std::int64_t from = std::max<std::int64_t>(0, first - 1), count = length() - 1 - from;
  make_room(losses, length());
  if (first == 0) losses.push_back(std::numeric_limits<float>::quiet_NaN());
  std::vector<double> found(static_cast<std::size_t>(count));
  token_losses(model->transformer, hidden.data() + from * config().hidden,
               std::span(ids).subspan(static_cast<std::size_t>(from + 1)), found);
  losses.insert(losses.end(), found.begin(), found.end());
}

void Look::State::forget(std::int64_t to) {
  const ModelConfig& c = config();
  const auto cut = [&](std::vector<float>& rows, std::int64_t width) {
    if (std::ssize(rows) > to * width) rows.resize(static_cast<std::size_t>(to * width));
  };
  for (LookLayer& layer : layers) {
    cut(layer.q, c.query_width());
    cut(layer.q_before, c.query_width());
    for (std::vector<float>* rows : {&layer.k, &layer.v, &layer.k_plain, &layer.k_before}) cut(*rows, c.kv_width());
    cut(layer.lse, c.heads);
    cut(layer.statistics, c.heads * kLookStatistics);
  }
  cut(hidden, c.hidden);
  cut(losses, 1);
  ids.resize(static_cast<std::size_t>(to));
  tokens.resize(std::min(tokens.size(), ids.size()));
}

// Stands in for a layer's attention: the kept keys and values are its cache.
void Look::State::attend(const LayerAttention& call) {
  const ModelConfig& c = config();
  LookLayer& layer = layers[static_cast<std::size_t>(call.layer)];
  const std::int64_t M = call.rows, Q = c.query_width(), K = c.kv_width(), D = c.head_dim, past = length() - M;
  layer.options = call.options;
  if (layer.kept && options.before_rotation) {
    add_rows(layer.q_before, call.q, M * Q);
    add_rows(layer.k_before, call.k, M * K);
  }
  const bool rotates = call.rotation != nullptr && !edits.none_rotates(call.layer);
  const bool both = rotates && !edits.all_rotate(call.layer);
  if (both) {
    if (!layer.kept) layer.k_plain.clear();
    add_rows(layer.k_plain, call.k, M * K);
  }
  if (rotates) {
    for (std::int64_t h = 0; h < c.heads; ++h) {
      if (both && !edits.of(call.layer, h).positions) continue;
      const std::int64_t count = both ? 1 : c.heads;
      const auto rows = heads_of<void>(call.q, M, c.heads, D, h, count);
      rope(rows, rows, *call.rotation);
      h += count - 1;
    }
    const auto rows = heads_of<void>(call.k, M, c.kv_heads, D, 0, c.kv_heads);
    rope(rows, rows, *call.rotation);
  }
  const float *k = call.k, *v = call.v;
  if (layer.kept) {
    add_rows(layer.q, call.q, M * Q);
    add_rows(layer.k, call.k, M * K);
    add_rows(layer.v, call.v, M * K);
    k = layer.k.data(), v = layer.v.data();
  }
  if (layer.kept || options.statistics) resize_rows(layer.lse, length() * c.heads);
  if (options.statistics) resize_rows(layer.statistics, length() * c.heads * kLookStatistics);
  const float* plain = both ? layer.k_plain.data() : k;
  if (edits.uniform(call.layer)) {
    attend_heads(call, layer, k, plain, v, -1, c.heads);
  } else {
    for (std::int64_t h = 0; h < c.heads; ++h) attend_heads(call, layer, k, plain, v, h, 1);
  }
  if (options.statistics) add_sink_entropy(call, layer, past);
  replace_outputs(call, layer);
  if (!layer.kept) {
    layer.k_plain = std::vector<float>();  // frees, which clear() does not
    layer.lse = std::vector<float>();
  }
  if (options.progress) options.progress(call.layer + 1, c.layers);
}

// One head, or all of them for -1.
void Look::State::attend_heads(const LayerAttention& call, LookLayer& layer, const float* k, const float* k_plain,
                               const float* v, std::int64_t head, std::int64_t count) {
  const ModelConfig& c = config();
  const std::int64_t M = call.rows, N = length(), D = c.head_dim, S = kLookStatistics, H = c.heads;
  const std::int64_t first = std::max<std::int64_t>(head, 0), past = N - M;
  const std::int64_t kv = head < 0 ? 0 : kv_head(head), kv_count = head < 0 ? c.kv_heads : 1;
  const float* keys = edits.of(call.layer, first).positions ? k : k_plain;
  AttentionExtras extras;
  if (!layer.lse.empty())
    extras.lse = MutableView{DType::f32, layer.lse.data() + past * H + first, {1, count, M, 1}, {0, 1, H, 1}};
  if (options.statistics) {
    float* rows = layer.statistics.data() + (past * H + first) * S;
    extras.statistics = RowStatistics{
        .rows = {DType::f32, rows, {1, count, M, kRowStatistics}, {0, S, H * S, 1}},
        .options = {.sink_tokens = options.sinks, .sinks_apart = true, .tokens = {ids.begin(), ids.end()}}};
  }
  attend::attention(
      heads_of<const void>(call.q, M, H, D, first, count), heads_of<const void>(keys, N, c.kv_heads, D, kv, kv_count),
      heads_of<const void>(v, N, c.kv_heads, D, kv, kv_count), heads_of<void>(call.mixed, M, H, D, first, count),
      edits.options_for(call.options, call.layer, head, N, prompt), extras);
}

// One sink's share follows from its weight; that of several needs each of them.
void Look::State::add_sink_entropy(const LayerAttention& call, LookLayer& layer, std::int64_t past) {
  const ModelConfig& c = config();
  const std::int64_t M = call.rows, N = length(), D = c.head_dim, H = c.heads, S = kLookStatistics;
  const std::int64_t sinks = std::min(options.sinks, N);
  const auto part = [](float w) { return w > 0 ? -w * std::log(w) : 0.0F; };
  const auto row = [&](std::int64_t i, std::int64_t h) { return layer.statistics.data() + ((past + i) * H + h) * S; };
  if (sinks <= 1) {
    for (std::int64_t i = 0; i < M; ++i)
      for (std::int64_t h = 0; h < H; ++h)
        row(i, h)[kSinkEntropy] = part(row(i, h)[static_cast<std::int64_t>(RowStatistic::sink_tokens)]);
    return;
  }
  const float* k = layer.kept ? layer.k.data() : call.k;
  for (std::int64_t h = 0; h < H; ++h) {
    const float* keys = edits.of(call.layer, h).positions || layer.k_plain.empty() ? k : layer.k_plain.data();
    const View lse{DType::f32, layer.lse.data() + past * H + h, {1, 1, M, 1}, {0, 1, H, 1}};
    const Lens lens(heads_of<const void>(call.q, M, H, D, h, 1),
                    heads_of<const void>(keys, N, c.kv_heads, D, kv_head(h), 1),
                    edits.options_for(call.options, call.layer, h, N, prompt), {.lse = lse});
    const Tensor weights = lens.zoom({}, {.first_query = 0, .queries = M, .first_key = 0, .keys = sinks});
    const auto* w = weights.data<float>();
    for (std::int64_t i = 0; i < M; ++i) {
      float sum = 0;
      for (std::int64_t j = 0; j < sinks; ++j) sum += part(w[i * sinks + j]);
      row(i, h)[kSinkEntropy] = sum;
    }
  }
}

void Look::State::replace_outputs(const LayerAttention& call, LookLayer& layer) {
  const ModelConfig& c = config();
  const std::int64_t M = call.rows, Q = c.query_width(), D = c.head_dim;
  for (std::int64_t h = 0; h < c.heads; ++h) {
    const HeadEdit::Output output = edits.of(call.layer, h).output;
    if (output == HeadEdit::Output::own) continue;
    layer.means.resize(static_cast<std::size_t>(Q));
    float* mean = layer.means.data() + h * D;
    if (output == HeadEdit::Output::mean && length() == prompt)
      for (std::int64_t d = 0; d < D; ++d) {
        double sum = 0;
        for (std::int64_t i = 0; i < M; ++i) sum += static_cast<double>(call.mixed[i * Q + h * D + d]);
        mean[d] = static_cast<float>(sum / static_cast<double>(M));
      }
    for (std::int64_t i = 0; i < M; ++i) std::copy_n(mean, D, call.mixed + i * Q + h * D);
  }
}

}  // namespace attend::llm
