// Plans the memory of a network in training.
#include "llm/train/network_buffers.hpp"

#include <algorithm>

#include "base/checked.hpp"

namespace attend::llm {

char* Arena::take_bytes(std::int64_t bytes) {
  constexpr std::int64_t kLine = 64;
  used_ = (used_ + kLine - 1) / kLine * kLine;
  char* data = memory_ == nullptr ? nullptr : memory_ + used_;
  used_ += bytes;
  return data;
}

MutableView Arena::take(DType dtype, std::int64_t rows, std::int64_t cols) {
  char* data = take_bytes(checked_product("memory for training", {rows, cols, size_of(dtype)}));
  return {dtype, data, {1, 1, rows, cols}, {0, 0, cols, 1}};
}

std::int32_t* Arena::take_numbers(std::int64_t count) {
  return reinterpret_cast<std::int32_t*>(take_bytes(checked_product("memory for training", {count, 4})));
}

NetworkBuffers::NetworkBuffers(const ModelConfig& c, const NetworkOptions& options, Arena& arena) {
  const std::int64_t T = options.tokens, H = c.hidden, Q = c.query_width(), K = c.kv_width();
  const std::int64_t halves = c.gated ? 2 : 1, used = c.experts.used, E = c.experts.count;
  const DType wide_type = options.compute, sum_type = stored_type(options.compute);
  const auto values = [&](std::int64_t cols) { return arena.take(wide_type, T, cols); };
  const auto sums = [&](std::int64_t cols) { return arena.take(sum_type, T, cols); };
  const bool shared = options.recompute || options.frozen;  // the layers' memory, but for what comes in
  bool any_dense = false, any_experts = false;
  for (std::int64_t n = 0; n < c.layers; ++n) (c.has_experts(n) ? any_experts : any_dense) = true;

  const auto make_layer = [&](bool dense, bool experts) {
    Activations a;
    a.middle = sums(H);
    if (c.norm_after) a.sum1 = sums(H), a.sum2 = sums(H);
    a.normed1 = values(H), a.normed2 = values(H);
    if (c.qk_norm) a.qkv_raw = values(Q + 2 * K);
    a.qkv = values(Q + 2 * K);
    a.mixed = values(Q);
    a.lse = arena.take(sum_type, c.heads, T);
    a.wide = values(halves *
                    std::max(dense ? c.feed_forward : 0, experts ? (used + c.experts.shared) * c.experts.width : 0));
    if (!experts) return a;
    a.routing.scores = sums(E), a.routing.weights = sums(used);
    a.routing.tokens = arena.take_numbers(T * used), a.routing.rows = arena.take_numbers(T * used);
    a.routing.firsts = arena.take_numbers(E + 1);
    return a;
  };
  layers.reserve(static_cast<std::size_t>(c.layers));
  for (std::int64_t n = 0; n < c.layers; ++n) {
    if (n > 0 && shared)
      layers.push_back(layers.front());
    else
      layers.push_back(make_layer(shared ? any_dense : !c.has_experts(n), shared ? any_experts : c.has_experts(n)));
    if (n == 0 || !options.frozen) layers.back().in = sums(H);
  }
  const std::int64_t width = std::max(any_dense ? c.feed_forward : 0, any_experts ? c.experts.width : 0);
  last = sums(H), hidden = values(H);
  part = values(H), active = values(width);
  loss = sums(1);
  if (c.embedding_norm) embedded = sums(H);
  const std::int64_t head_width = H + (c.masked_head ? kBiasColumns : 0);
  if (c.masked_head) {
    head_raw = values(H), head_active = values(H), head_in = values(head_width);
    head_weight = arena.take(wide_type, c.vocabulary, head_width);
    if (!options.frozen) dhead_in = values(head_width), dhead_active = values(H);
  }
  if (any_experts) {
    router_in = sums(H), router_out = sums(E), mix = sums(H), gathered = values(H);
    if (!options.frozen) dgathered = values(H);
  }
  if (options.frozen) return;
  dresidual = sums(H);
  if (any_experts || c.norm != NormKind::rms) dnorm = sums(H);
  dpart = values(H), dnormed = values(H), dwide = values(halves * width), dactive = values(width);
  dmixed = values(Q), dqkv = values(Q + 2 * K);
  dloss = sums(1);
  scratch = arena.take(sum_type, std::max({c.vocabulary, c.context, c.token_types}), head_width);
}

std::int64_t buffer_bytes(const ModelConfig& config, const NetworkOptions& options) {
  Arena arena;
  const NetworkBuffers buffers(config, options, arena);
  return arena.bytes();
}

}  // namespace attend::llm
