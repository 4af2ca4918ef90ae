// Routed and shared experts of a network in training. The rows of an expert are gathered, so each is one product; they
// add to a token in rising order of experts: the same bits for any number of threads, and as generation has it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "attend/add.hpp"
#include "attend/linear.hpp"
#include "attend/softmax.hpp"
#include "attend/threads.hpp"
#include "base/elements.hpp"
#include "llm/train/network.hpp"
#include "llm/train/row_sums.hpp"

namespace attend::llm {
namespace {

constexpr std::int64_t kTokens = 64;  // of an item

void clear(const MutableView& x) {
  std::memset(x.data, 0, static_cast<std::size_t>(x.length() * x.dim() * size_of(x.dtype)));
}

MutableView rows_of(const MutableView& x, std::int64_t first, std::int64_t count) {
  return part_of(x, first * x.dim(), count, x.dim());
}

}  // namespace

double Network::balance_loss() const {
  return std::accumulate(balance_.begin(), balance_.end(), 0.0);
}

// The router works in the type of the parameters: a choice between two experts that are nearly alike is not to hang on
// the rounding of its logits.
void Network::route(std::size_t n, const Activations& a) {
  const std::int64_t E = config_.experts.count, used = config_.experts.used;
  const Routing& r = a.routing;
  const MutableView in = rows(buffers_.router_in), scores = rows(r.scores);
  const Parameter& router = layout_.at(*layout_.layers[n].router);
  convert(rows(a.normed2), in);
  linear(in, part_of(parameters_.view(), router.offset, E, config_.hidden), std::nullopt, rows(buffers_.router_out));
  softmax(rows(buffers_.router_out), scores);

  // The experts of each token, rising, in r.rows for now; then a row for each.
  const auto score = [&](std::int64_t t, std::int64_t e) { return load_element(stored_, scores.data, t * E + e); };
  parallel_for((T_ + kTokens - 1) / kTokens, [&](std::int64_t item, int) {
    std::vector<std::int32_t> order(static_cast<std::size_t>(E));
    for (std::int64_t t = item * kTokens; t < std::min(T_, (item + 1) * kTokens); ++t) {
      std::iota(order.begin(), order.end(), 0);
      std::sort(order.begin(), order.end(), [&](std::int32_t x, std::int32_t y) {
        const double at_x = score(t, x), at_y = score(t, y);
        return at_x != at_y ? at_x > at_y : x < y;
      });
      std::sort(order.begin(), order.begin() + used);
      std::copy_n(order.begin(), used, r.rows + t * used);
    }
  });
  std::fill_n(r.firsts, E + 1, 0);
  for (std::int64_t i = 0; i < T_ * used; ++i) ++r.firsts[r.rows[i] + 1];
  std::partial_sum(r.firsts, r.firsts + E + 1, r.firsts);
  std::vector<std::int32_t> next(r.firsts, r.firsts + E);
  for (std::int64_t t = 0; t < T_; ++t) {
    double sum = 1;
    if (config_.experts.normalised) {
      sum = 0;
      for (std::int64_t i = 0; i < used; ++i) sum += score(t, r.rows[t * used + i]);
    }
    for (std::int64_t i = 0; i < used; ++i) {
      const std::int32_t expert = r.rows[t * used + i], row = next[static_cast<std::size_t>(expert)]++;
      r.rows[t * used + i] = row;
      r.tokens[row] = static_cast<std::int32_t>(t);
      store_element(stored_, r.weights.data, row, score(t, expert) / sum);
    }
  }
  double balance = 0;
  for (std::int64_t e = 0; e < E; ++e) {
    double mean = 0;
    for (std::int64_t t = 0; t < T_; ++t) mean += score(t, e);
    balance += static_cast<double>(r.firsts[e + 1] - r.firsts[e]) * mean;
  }
  const auto tokens = static_cast<double>(std::max<std::int64_t>(T_, 1));
  balance_[n] = balance * static_cast<double>(E) / (tokens * tokens * static_cast<double>(used));
}

void Network::experts_part(std::size_t n, const Activations& a) {
  route(n, a);
  const LayerPlaces& l = layout_.layers[n];
  const Routing& r = a.routing;
  const std::int64_t used = config_.experts.used, W = wide_columns(config_.experts.width), H = config_.hidden;
  const MutableView wide = part_of(a.wide, 0, T_ * (used + config_.experts.shared), W), mix = rows(buffers_.mix);
  clear(mix);
  for (std::size_t e = 0; e < l.experts.size(); ++e) {
    const std::int64_t first = r.firsts[e], count = r.firsts[e + 1] - first;
    if (count == 0) continue;
    const MutableView x = rows_of(buffers_.gathered, 0, count), y = rows_of(buffers_.part, 0, count);
    gather_rows(rows(a.normed2), r.tokens + first, x);
    feed_forward(l.experts[e], x, rows_of(wide, first, count), y);
    const View weights = part_of(r.weights, first, count, 1);
    add_rows_at(y, r.tokens + first, &weights, mix);
  }
  for (std::size_t s = 0; s < l.shared.size(); ++s) {
    feed_forward(l.shared[s], rows(a.normed2), rows_of(wide, (used + static_cast<std::int64_t>(s)) * T_, T_),
                 rows(buffers_.part));
    add_rows_at(rows(buffers_.part), nullptr, nullptr, mix);
  }
  convert(mix, part_of(buffers_.part, 0, T_, H));
}

void Network::clear_gradient(const FeedForwardPlaces& places) {
  clear(gradient(*places.in.weight, wide_columns(config_.experts.width)));
  clear(gradient(*places.down.weight, config_.hidden));
}

// dpart -> dnormed
void Network::experts_backward_part(std::size_t n, const Activations& a) {
  const LayerPlaces& l = layout_.layers[n];
  const Routing& r = a.routing;
  const std::int64_t used = config_.experts.used, W = wide_columns(config_.experts.width);
  const MutableView wide = part_of(a.wide, 0, T_ * (used + config_.experts.shared), W), mix = rows(buffers_.mix),
                    dpart = rows(buffers_.dpart);
  clear(mix);
  for (std::size_t e = 0; e < l.experts.size(); ++e) {
    const std::int64_t first = r.firsts[e], count = r.firsts[e + 1] - first;
    if (count == 0 && !add_) clear_gradient(l.experts[e]);
    if (count == 0) continue;
    const MutableView x = rows_of(buffers_.gathered, 0, count), dy = rows_of(buffers_.dgathered, 0, count),
                      dx = rows_of(buffers_.dnormed, 0, count), weights = part_of(r.weights, first, count, 1);
    gather_rows(rows(a.normed2), r.tokens + first, x);
    gather_rows(dpart, r.tokens + first, dy);
    feed_forward_backward(l.experts[e], dy, x, rows_of(wide, first, count), dx, &weights);
    add_rows_at(dx, r.tokens + first, nullptr, mix);
  }
  for (std::size_t s = 0; s < l.shared.size(); ++s) {
    const MutableView dx = rows(buffers_.dnormed);
    feed_forward_backward(l.shared[s], dpart, rows(a.normed2),
                          rows_of(wide, (used + static_cast<std::int64_t>(s)) * T_, T_), dx, nullptr);
    add_rows_at(dx, nullptr, nullptr, mix);
  }
  router_backward(n, a);
  convert(mix, rows(buffers_.dnormed));
}

// From the gradients of the rows' weights, which stand in their place, and of the balance loss, to the router and to
// what it read.
void Network::router_backward(std::size_t n, const Activations& a) {
  const std::int64_t E = config_.experts.count, used = config_.experts.used;
  const Routing& r = a.routing;
  const MutableView dlogits = rows(buffers_.router_out), scores = rows(r.scores);
  const auto tokens = static_cast<double>(T_);
  const double balance = balance_weight_ * static_cast<double>(E) / (tokens * tokens * static_cast<double>(used));
  parallel_for((T_ + kTokens - 1) / kTokens, [&](std::int64_t item, int) {
    std::vector<double> p(static_cast<std::size_t>(E)), dp(p.size());
    for (std::int64_t t = item * kTokens; t < std::min(T_, (item + 1) * kTokens); ++t) {
      for (std::size_t e = 0; e < p.size(); ++e) {
        p[e] = load_element(stored_, scores.data, t * E + static_cast<std::int64_t>(e));
        dp[e] = balance * (r.firsts[e + 1] - r.firsts[e]);
      }
      const auto expert_of = [&](std::int32_t row) {
        return static_cast<std::size_t>(std::upper_bound(r.firsts, r.firsts + E + 1, row) - r.firsts - 1);
      };
      double sum = 1, shift = 0;
      if (config_.experts.normalised) {
        sum = 0;
        for (std::int64_t i = 0; i < used; ++i) sum += p[expert_of(r.rows[t * used + i])];
        for (std::int64_t i = 0; i < used; ++i) {
          const std::int32_t row = r.rows[t * used + i];
          shift += load_element(stored_, r.weights.data, row) * p[expert_of(row)] / sum;
        }
      }
      for (std::int64_t i = 0; i < used; ++i) {
        const std::int32_t row = r.rows[t * used + i];
        dp[expert_of(row)] += (load_element(stored_, r.weights.data, row) - shift) / sum;
      }
      const double mean = std::inner_product(p.begin(), p.end(), dp.begin(), 0.0);
      for (std::size_t e = 0; e < p.size(); ++e)
        store_element(stored_, dlogits.data, t * E + static_cast<std::int64_t>(e), p[e] * (dp[e] - mean));
    }
  });
  const Parameter& router = layout_.at(*layout_.layers[n].router);
  const MutableView in = rows(buffers_.router_in), din = rows(buffers_.dnorm), mix = rows(buffers_.mix);
  convert(rows(a.normed2), in);
  linear_backward(dlogits, in, part_of(View(parameters_.view()), router.offset, E, config_.hidden),
                  {.dx = din, .dweight = gradient(*layout_.layers[n].router, E), .dbias = {}, .add = add_});
  add(mix, din, mix);
}

}  // namespace attend::llm
