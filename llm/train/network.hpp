// A model in training: the loss of a batch and the gradient of every parameter.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "attend/attention.hpp"
#include "attend/rope.hpp"
#include "attend/tensor.hpp"
#include "llm/model/config.hpp"
#include "llm/train/network_buffers.hpp"
#include "llm/train/parameters.hpp"

namespace attend::llm {

inline constexpr std::int64_t kIgnored = -100;

// Documents one after the other; none sees another.
struct TrainingBatch {
  std::vector<std::int64_t> tokens;
  std::vector<std::int64_t> targets;  // what each token is to predict; kIgnored: nothing
  std::vector<std::int64_t> starts;   // where documents begin, and the end: 0, ..., tokens.size()
  // Of one document that is spread over processes: which of its places this one's tokens have. Else empty.
  std::vector<std::int64_t> places{};
};

// Attention of tokens to those that other processes hold, all of whom call it. Masks count places in the document.
class SpreadAttention {
 public:
  virtual ~SpreadAttention() = default;
  virtual void forward(const View& q, const View& k, const View& v, const MutableView& out, const MutableView& lse,
                       const AttentionOptions& options) = 0;
  virtual void backward(const View& dout, const View& q, const View& k, const View& v, const View& out, const View& lse,
                        const AttentionGradients& gradients, const AttentionOptions& options) = 0;
};

// A stretch of the flat array of gradients.
struct GradientPiece {
  std::int64_t first = 0, count = 0;
};
// Who works on gradients while backward makes others.
struct GradientEvents {
  std::function<void()> begin{};  // backward is about to write any of them
  std::function<void(const GradientPiece& piece)> complete{};
};

class Network {
 public:
  // Parameters start as zeros.
  Network(ModelConfig config, const NetworkOptions& options);

  const ModelConfig& config() const { return config_; }
  const NetworkOptions& options() const { return options_; }
  const ParameterLayout& layout() const { return layout_; }

  // [1, 1, 1, layout().count()]: f32, or f64 where all is f64. Whoever writes them calls changed() then.
  MutableView parameters() { return parameters_; }
  View parameters() const { return parameters_; }
  MutableView gradients() { return gradients_; }
  void changed();  // rounds the matrices again where products are in bf16

  // Gives the sum of the targets' losses, and writes the gradient of factor times that sum to gradients(), or adds it
  // to what is there. `seed` decides what dropout keeps. InvalidArgument for tokens and documents that do not fit.
  double loss_and_gradients(const TrainingBatch& batch, double factor, bool add, std::uint64_t seed = 0);
  double loss(const TrainingBatch& batch) { return forward(batch, 0, false); }
  // Of every token in the last call, [tokens, 1]; 0 where it had no target.
  View losses() const { return rows(buffers_.loss); }
  // How evenly the last call's tokens were spread over routed experts: for each layer that has them, the experts' count
  // times the sum over them of (share of the choices) * (mean of the router's softmax), which is 1 where all are alike.
  // It is in no loss above; with NetworkOptions::balance, gradients are those of the loss plus
  // factor * targets * balance * balance_loss().
  double balance_loss() const;

  // The same in two calls, where the factors depend on the losses: one for all tokens, or one a token. The logits are
  // made twice then. Nothing is dropped unless `training`. backward() follows a forward() of the same batch, once.
  double forward(const TrainingBatch& batch, std::uint64_t seed, bool training);
  void backward(const TrainingBatch& batch, double factor, bool add);
  void backward(const TrainingBatch& batch, std::span<const double> factors, bool add);

  // The same for a loss of another kind over the rows behind the last norm, [1, 1, tokens, hidden]: run() makes them;
  // `head` then writes the loss's gradients of the rows, and of the head (where told so, adds to what is there). What
  // stands for factor * targets is `weight`.
  View run(const TrainingBatch& batch, std::uint64_t seed, bool training);
  View head() const;  // [1, 1, vocabulary, hidden], as parameters() holds it
  using HeadGradients = std::function<void(const MutableView& dhidden, const MutableView& dhead, bool add)>;
  void backward(const TrainingBatch& batch, const HeadGradients& head, double weight, bool add);

  // All gradients, in the order in which backward completes them: behind the layers, the layers from the last to the
  // first, before the layers.
  std::vector<GradientPiece> gradient_pieces() const;
  void watch_gradients(GradientEvents events) { events_ = std::move(events); }
  // For batches with places; it outlives the network.
  void set_spread_attention(SpreadAttention* attention) { spread_ = attention; }

 private:
  enum Part { kAttention = 0, kFeedForward = 1 };

  // The batch's rows of a buffer; some columns of them as heads.
  MutableView rows(const MutableView& buffer) const;
  MutableView heads(const MutableView& buffer, std::int64_t first, std::int64_t count) const;
  MutableView lse_of(const Activations& a) const;
  std::int64_t wide_columns(std::int64_t width) const { return config_.gated ? 2 * width : width; }
  // Parameters and gradients by their places.
  View weight(std::size_t place, std::int64_t outputs) const;
  std::optional<View> vector(ParameterPlace place, std::int64_t count) const;
  MutableView gradient(std::size_t place, std::int64_t rows);

  // What the logits are products of.
  View head_rows() const { return rows(config_.masked_head ? buffers_.head_in : buffers_.hidden); }
  View head_weight() const;
  void masked_head();
  void masked_head_backward(const MutableView& dhead, const MutableView& dhidden, bool add_head);

  void begin(const TrainingBatch& batch);
  void find_positions(const TrainingBatch& batch);
  void run_layers();
  void attention_part(std::size_t n, const Activations& a);
  void feed_forward_part(std::size_t n, const Activations& a);
  void norm(const NormPlaces& places, const View& x, const MutableView& y) const;
  void project(const LinearPlaces& places, const View& x, const MutableView& y) const;
  void activate(const MutableView& wide, const MutableView& active) const;
  void feed_forward(const FeedForwardPlaces& places, const View& x, const MutableView& wide,
                    const MutableView& y) const;
  void route(std::size_t n, const Activations& a);
  void experts_part(std::size_t n, const Activations& a);
  void add_part(std::size_t n, Part part, const MutableView& residual, const MutableView& sum) const;

  double sum_of_losses() const;
  void check_backward(const TrainingBatch& batch) const;
  void attention_backward_part(std::size_t n, const Activations& a);
  void experts_backward_part(std::size_t n, const Activations& a);
  void router_backward(std::size_t n, const Activations& a);
  void feed_forward_backward(const FeedForwardPlaces& places, const View& dy, const View& x, const MutableView& wide,
                             const MutableView& dx, const MutableView* weights);
  void clear_gradient(const FeedForwardPlaces& places);
  void feed_forward_backward_part(std::size_t n, const Activations& a);
  void embedding_gradient(const TrainingBatch& batch);
  void norm_backward(const NormPlaces& places, const View& dy, const View& x, const MutableView& dx,
                     const std::optional<View>& plus = std::nullopt);
  void project_backward(const LinearPlaces& places, const View& dy, const View& x,
                        const std::optional<MutableView>& dx);
  void take_part(std::size_t n, Part part);                               // dresidual -> dpart
  void give_back(const NormPlaces& places, const MutableView& residual);  // dnormed -> dresidual
  // `write` makes a gradient; it goes where `to` is, or is added to what is there.
  void write_gradient(const MutableView& to, bool add, const std::function<void(const MutableView&)>& write);

  AttentionOptions attention_options(std::size_t n) const;
  Dropout dropout_of(std::size_t n, Part part) const;

  ModelConfig config_;
  NetworkOptions options_;
  ParameterLayout layout_;
  DType stored_, compute_;
  RopeFrequencies frequencies_;
  Tensor slopes_;  // of ALiBi
  Tensor parameters_, gradients_, halves_, memory_;
  Arena arena_;
  NetworkBuffers buffers_;

  // of the batch
  std::int64_t T_ = 0;
  std::vector<std::int64_t> positions_;
  RopeTable rope_;
  Mask mask_;
  std::uint64_t seed_ = 0;
  bool dropping_ = false, add_ = false;
  bool ran_ = false;             // forward, and not yet backward
  std::vector<double> balance_;  // by layer
  double balance_weight_ = 0;
  GradientEvents events_;
  SpreadAttention* spread_ = nullptr;
  bool is_spread_ = false;  // the batch
};

}  // namespace attend::llm
