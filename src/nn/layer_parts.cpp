// What the layers share: parameters drawn at random, what a step asks of its options, copies.
#include "nn/layer_parts.hpp"

#include <cmath>
#include <string>
#include <variant>

#include "base/check.hpp"
#include "base/elements.hpp"
#include "base/random.hpp"
#include "ops/rows.hpp"

namespace attend {
namespace {

// A diagonal counted from the first key would take the new tokens for the first ones.
void check_last_key(const char* op, const char* what, const Diagonal& diagonal) {
  if (diagonal.offsets == nullptr && diagonal.align == Align::first_key) {
    fail(op, std::string(what) +
                 " of step is aligned to first_key, expected last_key (the new tokens are the last of the sequence)");
  }
}

void check_step_mask(const char* op, const Mask& mask) {
  for (const MaskRule& rule : mask.rules) {
    if (const auto* causal_rule = std::get_if<CausalRule>(&rule))
      check_last_key(op, "causal mask", causal_rule->diagonal);
    if (const auto* window_rule = std::get_if<WindowRule>(&rule))
      check_last_key(op, "window mask", window_rule->diagonal);
    if (const auto* prefix_rule = std::get_if<PrefixRule>(&rule))
      check_last_key(op, "prefix mask", prefix_rule->diagonal);
    if (const auto* chunks_rule = std::get_if<ChunksRule>(&rule))
      check_last_key(op, "chunks mask", chunks_rule->diagonal);
    if (const auto* dilated_rule = std::get_if<DilatedRule>(&rule))
      check_last_key(op, "dilated mask", dilated_rule->diagonal);
    if (const auto* tokens_rule = std::get_if<TokensRule>(&rule))
      check_last_key(op, "tokens mask", tokens_rule->diagonal);
    if (const auto* any_rule = std::get_if<AnyRule>(&rule); any_rule != nullptr && any_rule->masks)
      for (const Mask& part : *any_rule->masks) check_step_mask(op, part);
  }
}

}  // namespace

void fill(Tensor& tensor, double value) {
  for (std::int64_t i = 0; i < tensor.size(); ++i) store_element(tensor.dtype(), tensor.view().data, i, value);
}

void draw_uniform(Tensor& tensor, std::uint64_t seed, std::uint64_t stream, std::int64_t inputs) {
  // Seeds that follow one another must not meet in each other's streams: the odd constant spreads them apart.
  const std::uint64_t key = seed ^ (stream * 0x9E3779B97F4A7C15ULL);
  const double bound = 1.0 / std::sqrt(static_cast<double>(inputs));
  for (std::int64_t i = 0; i < tensor.size(); ++i) {
    const double value = (2.0 * uniform(key, static_cast<std::uint64_t>(i)) - 1.0) * bound;
    store_element(tensor.dtype(), tensor.view().data, i, value);
  }
}

void check_truncate(const char* op, std::int64_t length, std::int64_t held) {
  if (length >= 0 && length <= held) return;
  fail(op, "length is " + std::to_string(length) + ", expected 0 to " + std::to_string(held) + " (the length so far)");
}

void check_step_options(const char* op, const AttentionOptions& options) {
  check_step_mask(op, options.mask);
  if (options.alibi_slopes) check_last_key(op, "ALiBi", options.alibi_diagonal);
}

Tensor copy_of(const View& x) {
  Tensor copy(x.dtype, x.shape);
  copy_rows(x, copy);
  return copy;
}

}  // namespace attend
