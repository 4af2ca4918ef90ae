// One paged cache per layer, changed together; windows and streams forget whole pages.
#include "llm/cache/model_cache.hpp"

#include <algorithm>
#include <string>

#include "attend/error.hpp"
#include "base/checked.hpp"

namespace attend::llm {
namespace {

constexpr std::int64_t kPage = PagedKvCache::kPageTokens;

PagedKvCacheOptions layer_options(const ModelConfig& config, const CacheOptions& options, std::int64_t pages) {
  return {options.dtype, config.kv_heads, config.head_dim, config.head_dim, pages, options.int8};
}

}  // namespace

ModelCache::ModelCache(const ModelConfig& config, const CacheOptions& options)
    : options_(options), sinks_(PagedKvCache::pages_for(options.sinks) * kPage), kv_width_(config.kv_width()) {
  if (!config.causal) throw InvalidArgument("cache: a model that is not causal has none");
  if (options.stream < 0 || options.sinks < 0)
    throw InvalidArgument("cache: stream is " + std::to_string(options.stream) + " and sinks " +
                          std::to_string(options.sinks) + ", expected 0 or more");
  if (options.stream > 0 && config.positions != PositionKind::rope)
    throw InvalidArgument("cache: only models with rotated positions can stream: " + config.family + " has others");
  for (std::int64_t n = 0; n < config.layers; ++n) {
    layers_.emplace_back(layer_options(config, options, PagedKvCache::pages_for(options.tokens)));
    windows_.push_back(config.window_of(n));
  }
}

std::int64_t ModelCache::bytes() const {
  return layers_.front().bytes() * std::ssize(layers_);
}

std::int64_t ModelCache::bytes_per_token() const {
  return layers_.front().bytes_per_token() * std::ssize(layers_);
}

std::int64_t ModelCache::free_pages() const {
  std::int64_t pages = layers_.front().free_pages();
  for (const PagedKvCache& layer : layers_) pages = std::min(pages, layer.free_pages());
  return pages;
}

void ModelCache::place(std::int64_t number, Sequence sequence) {
  if (std::ssize(sequences_) <= number) sequences_.resize(static_cast<std::size_t>(number) + 1);
  at(number) = std::move(sequence);
}

std::int64_t ModelCache::add() {
  std::int64_t number = 0;
  for (PagedKvCache& layer : layers_) number = layer.add();
  Sequence fresh{std::vector<std::int64_t>(layers_.size()), {}};
  if (options_.stream > 0) fresh.sinks.resize(layers_.size() * static_cast<std::size_t>(2 * sinks_ * kv_width_));
  place(number, std::move(fresh));
  return number;
}

bool ModelCache::can_cut(std::int64_t sequence, std::int64_t length) const {
  if (length == this->length(sequence)) return true;
  const Sequence& s = at(sequence);
  for (std::size_t n = 0; n < layers_.size(); ++n) {
    // A stream's middle is gone; a window needs the tokens before the cut.
    const std::int64_t needed = windows_[n] > 0 && options_.stream == 0 ? length - windows_[n] + 1 : 0;
    if (s.forgotten[n] > 0 && s.forgotten[n] > needed) return false;
  }
  return true;
}

std::int64_t ModelCache::fork(std::int64_t sequence, std::int64_t length) {
  if (!can_cut(sequence, length)) throw InvalidArgument("cache: what this fork needs is forgotten");
  Sequence copy = at(sequence);
  std::int64_t number = 0;
  for (std::size_t n = 0; n < layers_.size(); ++n) number = layers_[n].fork(sequence, length - copy.forgotten[n]);
  place(number, std::move(copy));
  return number;
}

void ModelCache::truncate(std::int64_t sequence, std::int64_t length) {
  if (!can_cut(sequence, length)) throw InvalidArgument("cache: what is needed after this cut is forgotten");
  for (std::size_t n = 0; n < layers_.size(); ++n) layers_[n].truncate(sequence, length - at(sequence).forgotten[n]);
}

void ModelCache::remove(std::int64_t sequence) {
  for (PagedKvCache& layer : layers_) layer.remove(sequence);
  at(sequence) = {};
}

std::int64_t ModelCache::length(std::int64_t sequence) const {
  const std::int64_t kept = layers_.front().length(sequence);  // says so if there is no such sequence
  return kept + at(sequence).forgotten.front();
}

std::int64_t ModelCache::forgotten(std::int64_t sequence) const {
  return at(sequence).forgotten.front();
}

std::int64_t ModelCache::pages_to_append(std::int64_t sequence, std::int64_t count) const {
  std::int64_t pages = 0;
  for (const PagedKvCache& layer : layers_) pages = std::max(pages, layer.pages_to_append(sequence, count));
  return pages;
}

bool ModelCache::slide(std::int64_t sequence) {
  length(sequence);  // says so if there is no such sequence
  Sequence& s = at(sequence);
  bool rotate = false;
  for (std::size_t n = 0; n < layers_.size(); ++n) {
    const std::int64_t window = options_.stream > 0 ? options_.stream : windows_[n];
    if (window == 0) continue;
    // Positions are those in this layer's pages. The next token sees itself and window - 1 before it.
    const std::int64_t first = options_.stream > 0 ? sinks_ : 0, kept = layers_[n].length(sequence);
    // A window forgets so much at once that sums are still cut at the same keys; a stream's move anyway.
    const std::int64_t grain = options_.stream > 0 ? kPage : PagedKvCache::kSplitTokens;
    const std::int64_t count = std::max<std::int64_t>(0, kept - first - window + 1) / grain * grain;
    if (count == 0) continue;
    layers_[n].forget(sequence, first, count);
    s.forgotten[n] += count;
    rotate |= options_.stream > 0 && first > 0;
  }
  return rotate;
}

std::int64_t ModelCache::bytes_for(const ModelConfig& config, const CacheOptions& options) {
  const PagedKvCache one(layer_options(config, options, 1));
  return checked_product("cache", {one.bytes(), PagedKvCache::pages_for(options.tokens), config.layers});
}

}  // namespace attend::llm
