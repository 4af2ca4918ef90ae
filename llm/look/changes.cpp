// The heads, predictions and tokens that differ most between two runs.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>

#include "attend/error.hpp"
#include "attend/threads.hpp"
#include "llm/generate/perplexity.hpp"
#include "llm/look/look_state.hpp"
#include "llm/look/predictions.hpp"

namespace attend::llm {
namespace {

constexpr std::int64_t kWeightsAtOnce = std::int64_t{1} << 22;

// Weights follow from these and the mask, and a mask that hides a weight above 0 changes the LSE.
bool same_weights(const LookLayer& a, const LookLayer& b) {
  return a.q == b.q && a.k == b.k && a.k_plain == b.k_plain && a.lse == b.lse;
}

HeadChange change_of(const Look& before, const Look& after, std::int64_t layer, std::int64_t head) {
  const std::int64_t T = after.length(), band = std::max<std::int64_t>(1, kWeightsAtOnce / T);
  HeadChange result{.layer = layer, .head = head};
  for (std::int64_t first = 0; first < T; first += band) {
    const LensArea area{first, std::min(band, T - first), 0, T};
    const std::vector<float> x = before.zoom(layer, head, area), y = after.zoom(layer, head, area);
    for (std::int64_t i = 0; i < area.queries; ++i) {
      double sum = 0;
      for (std::int64_t j = i * T; j < (i + 1) * T; ++j)
        sum += std::abs(static_cast<double>(y[static_cast<std::size_t>(j)]) -
                        static_cast<double>(x[static_cast<std::size_t>(j)]));
      result.change += sum / 2 / static_cast<double>(T);
      if (sum / 2 > result.query_change) result.query_change = sum / 2, result.query = first + i;
    }
  }
  return result;
}

std::vector<HeadChange> head_changes(const Look& before, const Look& after, const OnProgress& progress) {
  const Look::State &a = LookAccess::state(before), &b = LookAccess::state(after);
  std::vector<HeadChange> heads;
  if (before.layers() != after.layers() || before.heads() != after.heads()) return heads;
  for (std::int64_t layer = 0; layer < after.layers(); ++layer) {
    if (before.kept(layer) && after.kept(layer)) {
      const bool same = same_weights(a.kept_layer(layer), b.kept_layer(layer));
      for (std::int64_t head = 0; head < after.heads(); ++head)
        heads.push_back(same ? HeadChange{.layer = layer, .head = head} : change_of(before, after, layer, head));
    }
    if (progress) progress(layer + 1, after.layers());
  }
  // NaN weights sort as an infinite change: std::sort requires an ordering of all values.
  const auto key = [](const HeadChange& h) {
    return std::tuple(std::isnan(h.change) ? -std::numeric_limits<double>::infinity() : -h.change, h.layer, h.head);
  };
  std::sort(heads.begin(), heads.end(), [&](const HeadChange& x, const HeadChange& y) { return key(x) < key(y); });
  return heads;
}

// The first `count` of the positions, largest value first.
std::vector<std::int64_t> largest(const std::vector<double>& values, std::int64_t count) {
  std::vector<std::int64_t> order;
  for (std::int64_t i = 0; i < std::ssize(values); ++i)
    if (std::isfinite(values[static_cast<std::size_t>(i)])) order.push_back(i);
  std::sort(order.begin(), order.end(), [&](std::int64_t x, std::int64_t y) {
    return std::pair(-values[static_cast<std::size_t>(x)], x) < std::pair(-values[static_cast<std::size_t>(y)], y);
  });
  order.resize(static_cast<std::size_t>(std::min(count, std::ssize(order))));
  return order;
}

std::vector<double> divergences(const Look::State& a, const Look::State& b) {
  const std::int64_t T = b.length(), V = b.config().vocabulary;
  std::vector<double> found(static_cast<std::size_t>(T));
  std::vector<float> x(static_cast<std::size_t>(std::min(kLogitRows, T) * V)), y(x.size());
  const auto logits = [&](const Look::State& s, std::int64_t first, std::int64_t rows, std::vector<float>& to) {
    const std::int64_t H = s.config().hidden;
    s.model->transformer.logits(view_of(s.hidden.data() + first * H, {1, 1, rows, H}),
                                view_of(to.data(), {1, 1, rows, V}));
  };
  for (std::int64_t first = 0; first < T; first += kLogitRows) {
    const std::int64_t rows = std::min(kLogitRows, T - first);
    logits(a, first, rows, x);
    logits(b, first, rows, y);
    parallel_for(rows, [&](std::int64_t i, int) {
      const auto at = static_cast<std::size_t>(i * V), size = static_cast<std::size_t>(V);
      found[static_cast<std::size_t>(first + i)] =
          divergence(std::span<const float>(x).subspan(at, size), std::span<const float>(y).subspan(at, size));
    });
  }
  return found;
}

std::vector<PredictionChange> prediction_changes(const Look& before, const Look& after, std::int64_t count) {
  const Look::State &a = LookAccess::state(before), &b = LookAccess::state(after);
  const auto predicts = [](const Look::State& s) { return s.config().causal || s.config().masked_head; };
  std::vector<PredictionChange> result;
  if (!predicts(a) || !predicts(b) || a.config().vocabulary != b.config().vocabulary) return result;
  const std::vector<double> all = divergences(a, b);
  for (const std::int64_t position : largest(all, count))
    result.push_back({position, all[static_cast<std::size_t>(position)], before.next_tokens(position, 1).front(),
                      after.next_tokens(position, 1).front()});
  return result;
}

std::vector<TokenChange> token_changes(const Look::State& a, const Look::State& b, std::int64_t count) {
  std::vector<TokenChange> result;
  if (!a.options.losses || !b.options.losses || a.ids != b.ids) return result;
  std::vector<double> change;
  for (std::size_t i = 0; i < a.losses.size(); ++i)
    change.push_back(std::abs(static_cast<double>(b.losses[i]) - static_cast<double>(a.losses[i])));
  for (const std::int64_t i : largest(change, count))
    result.push_back({i, static_cast<double>(a.losses[static_cast<std::size_t>(i)]),
                      static_cast<double>(b.losses[static_cast<std::size_t>(i)])});
  return result;
}

}  // namespace

LookChanges changes(const Look& before, const Look& after, std::int64_t count, const OnProgress& progress) {
  if (count < 0) throw InvalidArgument("changes: count is " + std::to_string(count) + ", expected 0 or more");
  if (before.length() != after.length()) return {};
  return {head_changes(before, after, progress), prediction_changes(before, after, count),
          token_changes(LookAccess::state(before), LookAccess::state(after), count)};
}

}  // namespace attend::llm
