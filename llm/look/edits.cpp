// What each head does differently under some switches.
#include "llm/look/edits.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "attend/error.hpp"
#include "base/random.hpp"
#include "io/readable.hpp"

namespace attend::llm {
namespace {

using Kind = Switch::Kind;

int narrowness(const Switch& one) {
  return (one.where.layer >= 0 ? 1 : 0) + (one.where.head >= 0 ? 1 : 0);
}

void edit(HeadEdit& head, const Switch& one) {
  switch (one.kind) {
    case Kind::scale:
      head.scaled = false;
      break;
    case Kind::heat:
      head.temperature = one.temperature;
      break;
    case Kind::mask:
      head.own_mask = false;
      head.mask = one;
      head.mask.where = {};
      break;
    case Kind::padding:
      head.hidden_from = one.hidden_from;
      head.hidden_to = one.hidden_to;
      break;
    case Kind::positions:
      head.positions = false;
      break;
    case Kind::knock_out:
    case Kind::only:
      head.output = one.mean ? HeadEdit::Output::mean : HeadEdit::Output::zero;
      break;
    case Kind::shuffle:
      break;
  }
}

}  // namespace

bool HeadEdit::same_scores(const HeadEdit& o) const {
  return scaled == o.scaled && temperature == o.temperature && own_mask == o.own_mask && mask == o.mask &&
         hidden_from == o.hidden_from && hidden_to == o.hidden_to && positions == o.positions;
}

Edits::Edits(const ModelConfig& config, std::span<const Switch> switches)
    : config_(config), heads_(static_cast<std::size_t>(config.layers * config.heads)) {
  // Those that name fewer heads are applied later, and so count.
  for (const int fixed : {0, 1, 2})
    for (const Switch& one : switches)
      if (narrowness(one) == fixed) apply(one);
}

void Edits::apply(const Switch& one) {
  const HeadPlace& where = one.where;
  const auto refuse = [&](const char* what, std::int64_t got, std::int64_t count) {
    throw InvalidArgument("the switch '" + to_text(one) + "' names " + what + " " + std::to_string(got) +
                          ", and the model has " + io::counted(count, what) + ", counted from 0");
  };
  if (where.layer >= config_.layers) refuse("layer", where.layer, config_.layers);
  if (where.head >= config_.heads) refuse("head", where.head, config_.heads);
  if (one.kind == Kind::positions) {
    const PositionKind kind = config_.positions;
    const bool added = kind == PositionKind::learned || kind == PositionKind::sinusoidal;
    if (added && where != HeadPlace{})
      throw InvalidArgument("the switch '" + to_text(one) + "' is for some heads, and " + config_.family +
                            " adds its positions before the first layer: expected positions=off for all");
    if (added) adds_positions_ = false;
  }
  for (std::int64_t layer = 0; layer < config_.layers; ++layer)
    for (std::int64_t head = 0; head < config_.heads; ++head) {
      const bool in_layer = where.layer < 0 || layer == where.layer,
                 named = in_layer && (where.head < 0 || head == where.head);
      const bool meant = one.kind == Kind::only ? !named && (one.whole_model || in_layer) : named;
      if (meant) edit(at(layer, head), one);
    }
}

bool Edits::uniform(std::int64_t layer) const {
  for (std::int64_t head = 1; head < config_.heads; ++head)
    if (!of(layer, head).same_scores(of(layer, 0))) return false;
  return true;
}

bool Edits::all_rotate(std::int64_t layer) const {
  for (std::int64_t head = 0; head < config_.heads; ++head)
    if (!of(layer, head).positions) return false;
  return true;
}

bool Edits::none_rotates(std::int64_t layer) const {
  for (std::int64_t head = 0; head < config_.heads; ++head)
    if (of(layer, head).positions) return false;
  return true;
}

AttentionOptions Edits::options_for(AttentionOptions options, std::int64_t layer, std::int64_t head, std::int64_t keys,
                                    std::int64_t prompt) const {
  const HeadEdit& e = of(layer, std::max<std::int64_t>(head, 0));
  if (!e.scaled) options.scale = 1.0;
  if (e.temperature != 1) {
    const double own = options.scale.value_or(1 / std::sqrt(static_cast<double>(config_.head_dim)));
    options.scale = own / e.temperature;
  }
  if (!e.positions) options.alibi_slopes.reset();
  if (head >= 0) {  // [1, heads, 1, 1] of the layer: this head's own
    const auto part = [&](std::optional<View>& all) {
      if (!all) return;
      all->data = static_cast<const float*>(all->data) + head * all->strides[1];
      all->shape[1] = 1;
    };
    part(options.alibi_slopes);
    part(options.sinks);
  }
  if (e.own_mask) {
    if (config_.causal) options.mask = causal();
    if (const std::int64_t width = config_.window_of(layer); width > 0)
      options.mask = options.mask & window(width - 1, 0);
  } else if (e.mask.mask == Switch::Mask::full) {
    if (config_.causal) options.mask = prefix({prompt});  // later tokens are not there yet when a row is made
  } else {
    options.mask = causal();
    const Mask near = e.mask.window > 0 ? window(e.mask.window - 1, 0) : no_mask();
    if (e.mask.mask == Switch::Mask::window) options.mask = options.mask & near;
    if (e.mask.mask == Switch::Mask::sinks)
      options.mask = options.mask & (near | padding({std::min(e.mask.sinks, keys)}));
  }
  if (e.hidden_to > e.hidden_from)
    options.mask =
        options.mask & (padding({std::min(e.hidden_from, keys)}) | left_padding({std::min(e.hidden_to, keys)}));
  return options;
}

std::int64_t Edits::visible(std::int64_t layer, std::int64_t head, std::int64_t i, std::int64_t prompt,
                            std::int64_t sinks) const {
  const HeadEdit& e = of(layer, head);
  // Keys [0, first_end) and [begin, end), in which the second may lie inside the first.
  std::int64_t begin = 0, end = i + 1, first_end = 0;
  if (e.own_mask) {
    if (!config_.causal) end = prompt;
    if (const std::int64_t width = config_.window_of(layer); width > 0)
      begin = std::max<std::int64_t>(0, i + 1 - width);
  } else if (e.mask.mask == Switch::Mask::full) {
    end = std::max(prompt, i + 1);
  } else if (e.mask.mask != Switch::Mask::causal) {
    begin = std::max<std::int64_t>(0, i + 1 - e.mask.window);
    if (e.mask.mask == Switch::Mask::sinks) first_end = std::min(e.mask.sinks, begin);
  }
  const auto keys = [&](std::int64_t from, std::int64_t to) {  // that are not sinks and not hidden
    from = std::max(from, sinks);
    if (to <= from) return std::int64_t{0};
    const std::int64_t hidden = std::max<std::int64_t>(0, std::min(to, e.hidden_to) - std::max(from, e.hidden_from));
    return to - from - hidden;
  };
  return keys(0, first_end) + keys(begin, end);
}

std::vector<Token> shuffled(std::span<const Token> tokens, const std::vector<bool>& fixed, std::uint64_t seed) {
  std::vector<Token> result(tokens.begin(), tokens.end());
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < result.size(); ++i)
    if (!fixed[i]) places.push_back(i);
  for (std::size_t n = places.size(); n > 1; --n) {
    const auto other = static_cast<std::size_t>(uniform(seed, n) * static_cast<double>(n));
    std::swap(result[places[n - 1]], result[places[std::min(other, n - 1)]]);
  }
  return result;
}

}  // namespace attend::llm
