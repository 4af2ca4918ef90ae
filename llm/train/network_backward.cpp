// The gradients of a transformer in training, from its losses back to its embeddings.
#include <cmath>
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
#include "llm/train/network.hpp"
#include "llm/train/row_sums.hpp"

namespace attend::llm {

void Network::write_gradient(const MutableView& to, bool add_to, const std::function<void(const MutableView&)>& write) {
  if (!add_to) return write(to);
  const MutableView made = part_of(buffers_.scratch, 0, to.length(), to.dim());
  write(made);
  add(to, made, to);
}

void Network::norm_backward(const NormPlaces& places, const View& dy, const View& x, const MutableView& dx,
                            const std::optional<View>& plus) {
  const View weight = *vector(places.weight, config_.hidden);
  const MutableView dweight = gradient(*places.weight, 1);
  if (config_.norm == NormKind::rms) {
    write_gradient(dweight, add_,
                   [&](const MutableView& to) { rms_norm_backward(dy, x, weight, dx, to, config_.norm_eps, plus); });
    return;
  }
  // Both gradients in one call: the bias lies right behind the weight, or further on.
  const MutableView made = part_of(buffers_.scratch, 0, 2, config_.hidden);
  const MutableView made_weight = part_of(made, 0, 1, config_.hidden),
                    made_bias = part_of(made, config_.hidden, 1, config_.hidden);
  const MutableView own = plus ? rows(buffers_.dnorm) : dx;
  layer_norm_backward(dy, x, weight, {own, made_weight, made_bias}, config_.norm_eps);
  if (plus) add(*plus, own, dx);
  const MutableView dbias = gradient(*places.bias, 1);
  for (const auto& [to, from] : {std::pair{dweight, made_weight}, {dbias, made_bias}}) {
    if (add_)
      add(to, from, to);
    else
      convert(from, to);
  }
}

void Network::project_backward(const LinearPlaces& places, const View& dy, const View& x,
                               const std::optional<MutableView>& dx) {
  LinearGradients wanted{.dx = dx, .dweight = gradient(*places.weight, dy.dim()), .dbias = {}, .add = add_};
  if (places.bias) wanted.dbias = part_of(gradients_.view(), layout_.at(*places.bias).offset, 1, dy.dim());
  linear_backward(dy, x, weight(*places.weight, dy.dim()), wanted);
}

void Network::take_part(std::size_t n, Part part) {
  const MutableView dpart = rows(buffers_.dpart);
  convert(rows(buffers_.dresidual), dpart);
  if (dropping_) dropout(dpart, dpart, dropout_of(n, part));
}

// The gradient of what a part read, through its norm, added to that of the residual.
void Network::give_back(const NormPlaces& places, const MutableView& residual) {
  const MutableView dresidual = rows(buffers_.dresidual), dnormed = rows(buffers_.dnormed);
  if (config_.norm_after)
    add(dresidual, dnormed, dresidual);
  else
    norm_backward(places, dnormed, residual, dresidual, dresidual);
}

void Network::feed_forward_backward_part(std::size_t n, const Activations& a) {
  const LayerPlaces& l = layout_.layers[n];
  if (config_.norm_after) {
    const MutableView d = rows(buffers_.dresidual);
    norm_backward(l.feed_forward_norm, d, rows(a.sum2), d);
  }
  take_part(n, kFeedForward);
  if (!l.experts.empty())
    experts_backward_part(n, a);
  else
    feed_forward_backward(l.feed_forward, rows(buffers_.dpart), rows(a.normed2),
                          part_of(a.wide, 0, T_, wide_columns(config_.feed_forward)), rows(buffers_.dnormed), nullptr);
  give_back(l.feed_forward_norm, rows(a.middle));
}

// With `weights`, y was multiplied by one of them a row: dy is that of the product, and they become their gradients.
void Network::feed_forward_backward(const FeedForwardPlaces& places, const View& dy, const View& x,
                                    const MutableView& wide, const MutableView& dx, const MutableView* weights) {
  const std::int64_t F = wide.dim() / wide_columns(1);
  const MutableView active = part_of(buffers_.active, 0, dy.length(), F),
                    dactive = part_of(buffers_.dactive, 0, dy.length(), F),
                    dwide = part_of(buffers_.dwide, 0, dy.length(), wide.dim());
  const bool remade = config_.gated && weights == nullptr;  // together with its gradients
  if (!remade) activate(wide, active);
  linear_backward(dy, active, weight(*places.down.weight, dy.dim()), {.dx = dactive});
  if (weights != nullptr) weigh_rows(active, dactive, *weights);
  if (config_.gated)
    gated_activation_backward(config_.activation, dactive, columns_of(wide, 0, F), columns_of(wide, F, F),
                              columns_of(dwide, 0, F), columns_of(dwide, F, F),
                              remade ? std::optional(active) : std::nullopt);
  else
    activation_backward(config_.activation, dactive, wide, dwide);
  project_backward(places.down, dy, active, std::nullopt);
  project_backward(places.in, dwide, x, dx);
}

void Network::attention_backward_part(std::size_t n, const Activations& a) {
  const ModelConfig& c = config_;
  const LayerPlaces& l = layout_.layers[n];
  const std::int64_t Q = c.query_width(), K = c.kv_width();
  if (c.norm_after) {
    const MutableView d = rows(buffers_.dresidual);
    norm_backward(l.attention_norm, d, rows(a.sum1), d);
  }
  take_part(n, kAttention);
  project_backward(l.o, rows(buffers_.dpart), rows(a.mixed), rows(buffers_.dmixed));
  const MutableView& raw = c.qk_norm ? a.qkv_raw : a.qkv;
  const MutableView dq = heads(buffers_.dqkv, 0, c.heads), dk = heads(buffers_.dqkv, Q, c.kv_heads);
  AttentionGradients wanted{dq, dk, heads(buffers_.dqkv, Q + K, c.kv_heads), {}, {}, {}};
  MutableView dsinks;
  if (l.sinks) {
    dsinks = part_of(buffers_.scratch, 0, 1, c.heads);
    wanted.dsinks = MutableView{dsinks.dtype, dsinks.data, {1, c.heads, 1, 1}, {0, 1, 0, 0}};
  }
  const auto backward = [&](const auto& f) {
    f(heads(buffers_.dmixed, 0, c.heads), heads(a.qkv, 0, c.heads), heads(a.qkv, Q, c.kv_heads),
      heads(raw, Q + K, c.kv_heads), heads(a.mixed, 0, c.heads), lse_of(a), wanted, attention_options(n));
  };
  if (is_spread_)
    backward([&](const auto&... given) { spread_->backward(given...); });
  else
    backward([](const auto&... given) { attention_backward(given...); });
  if (l.sinks) {
    const MutableView to = gradient(*l.sinks, 1);
    if (add_)
      add(to, dsinks, to);
    else
      convert(dsinks, to);
  }
  if (c.positions == PositionKind::rope) {
    rope_backward(dq, dq, rope_);
    rope_backward(dk, dk, rope_);
  }
  if (c.qk_norm) {
    const auto through = [&](ParameterPlace place, const MutableView& d, const MutableView& from) {
      write_gradient(gradient(*place, 1), add_, [&](const MutableView& to) {
        rms_norm_backward(d, from, *vector(place, c.head_dim), d, to, c.norm_eps);
      });
    };
    through(l.q_norm, dq, heads(raw, 0, c.heads));
    through(l.k_norm, dk, heads(raw, Q, c.kv_heads));
  }
  project_backward(l.qkv, rows(buffers_.dqkv), rows(a.normed1), rows(buffers_.dnormed));
  give_back(l.attention_norm, rows(a.in));
}

void Network::embedding_gradient(const TrainingBatch& batch) {
  const MutableView d = rows(buffers_.dresidual);
  if (config_.embedding_norm) norm_backward(layout_.embedding_norm, d, rows(buffers_.embedded), d);
  write_gradient(gradient(layout_.embedding, config_.vocabulary), add_ || !layout_.head,
                 [&](const MutableView& to) { embedding_backward(d, batch.tokens, to); });
  if (layout_.positions)
    write_gradient(gradient(*layout_.positions, config_.context), add_,
                   [&](const MutableView& to) { embedding_backward(d, positions_, to); });
  if (layout_.token_types)
    write_gradient(gradient(*layout_.token_types, config_.token_types), add_, [&](const MutableView& to) {
      embedding_backward(d, std::vector<std::int64_t>(batch.tokens.size()), to);
    });
}

void Network::check_backward(const TrainingBatch& batch) const {
  if (options_.frozen) throw InvalidArgument("training: the gradient of a frozen network, which has none");
  if (!ran_ || std::ssize(batch.tokens) != T_)
    throw InvalidArgument("training: backward without a forward of the same batch before it");
}

std::vector<GradientPiece> Network::gradient_pieces() const {
  const auto start = [&](ParameterPlace place) { return layout_.at(*place).offset; };
  std::int64_t end = layout_.count();
  std::vector<GradientPiece> pieces;
  const auto add_from = [&](std::int64_t first) {
    pieces.push_back({first, end - first});
    end = first;
  };
  ParameterPlace behind = layout_.head ? layout_.head : layout_.head_dense.weight;
  if (layout_.final_norm.weight) behind = layout_.final_norm.weight;
  add_from(behind ? start(behind) : end);
  for (std::size_t n = layout_.layers.size(); n-- > 0;) add_from(start(layout_.layers[n].attention_norm.weight));
  add_from(0);
  return pieces;
}

void Network::backward(const TrainingBatch& batch, const HeadGradients& head_gradients, double weight, bool add_to) {
  check_backward(batch);
  if (events_.begin) events_.begin();
  auto piece = [&, pieces = gradient_pieces(), next = std::size_t{0}]() mutable {
    if (events_.complete) events_.complete(pieces[next++]);
  };
  ran_ = false, add_ = add_to, balance_weight_ = options_.balance * weight;
  const MutableView dhidden = rows(buffers_.dnormed), dresidual = rows(buffers_.dresidual);
  head_gradients(dhidden, gradient(layout_.head.value_or(layout_.embedding), config_.vocabulary), add_);
  if (layout_.final_norm.weight)
    norm_backward(layout_.final_norm, dhidden, rows(buffers_.last), dresidual);
  else
    convert(dhidden, dresidual);
  piece();
  for (std::size_t n = buffers_.layers.size(); n-- > 0;) {
    const Activations& a = buffers_.layers[n];
    if (options_.recompute && n + 1 < buffers_.layers.size()) {
      attention_part(n, a);
      feed_forward_part(n, a);
      if (config_.norm_after) add_part(n, kFeedForward, rows(a.middle), rows(a.sum2));
    }
    feed_forward_backward_part(n, a);
    attention_backward_part(n, a);
    piece();
  }
  embedding_gradient(batch);
  piece();
}

void Network::backward(const TrainingBatch& batch, double factor, bool add_to) {
  backward(batch, std::vector<double>(batch.tokens.size(), factor), add_to);
}

void Network::backward(const TrainingBatch& batch, std::span<const double> factors, bool add_to) {
  check_backward(batch);
  if (std::ssize(factors) != T_)
    throw InvalidArgument("training: " + std::to_string(factors.size()) + " factors, expected " + std::to_string(T_) +
                          ", one a token");
  double sum = 0;
  for (std::size_t t = 0; t < factors.size(); ++t) {
    store_element(stored_, buffers_.dloss.data, static_cast<std::int64_t>(t), factors[t]);
    if (batch.targets[t] != kIgnored) sum += std::abs(factors[t]);
  }
  const auto head_gradients = [&](const MutableView& dhidden, const MutableView& dhead, bool add_head) {
    const auto write = [&](const MutableView& dx, const MutableView& to) {
      cross_entropy_backward(rows(buffers_.dloss), head_rows(), head_weight(), batch.targets,
                             {dx, to, rows(buffers_.loss)}, {kIgnored});
    };
    if (!config_.masked_head)
      return write_gradient(dhead, add_head, [&](const MutableView& to) { write(dhidden, to); });
    write(rows(buffers_.dhead_in), part_of(buffers_.scratch, 0, config_.vocabulary, config_.hidden + kBiasColumns));
    masked_head_backward(dhead, dhidden, add_head);
  };
  backward(batch, head_gradients, sum, add_to);
}

double Network::loss_and_gradients(const TrainingBatch& batch, double factor, bool add_to, std::uint64_t seed) {
  run(batch, seed, true);
  if (config_.masked_head) masked_head();
  backward(batch, factor, add_to);
  return sum_of_losses();
}

}  // namespace attend::llm
