// The C ABI of the building blocks of a model: layer norm, activations, sums, dropout, embedding, cross-entropy.
#include "abi/abi.hpp"
#include "attend/activation.hpp"
#include "attend/add.hpp"
#include "attend/cross_entropy.hpp"
#include "attend/dropout.hpp"
#include "attend/embedding.hpp"
#include "attend/layer_norm.hpp"

using attend::abi::guard;
using attend::abi::integers;
using attend::abi::mutable_view;
using attend::abi::optional_mutable_view;
using attend::abi::optional_view;
using attend::abi::view;

namespace {

// The C++ side refuses what is none of them.
attend::Activation activation_of(int32_t kind) {
  return static_cast<attend::Activation>(kind);
}
static_assert(static_cast<int>(attend::Activation::silu) == ATTEND_ACTIVATION_SILU);
static_assert(static_cast<int>(attend::Activation::gelu) == ATTEND_ACTIVATION_GELU);
static_assert(static_cast<int>(attend::Activation::gelu_tanh) == ATTEND_ACTIVATION_GELU_TANH);
static_assert(static_cast<int>(attend::Activation::relu) == ATTEND_ACTIVATION_RELU);

attend_cross_entropy_options default_loss_options() {
  attend_cross_entropy_options result{};
  result.ignore_index = attend::CrossEntropyOptions{}.ignore_index;
  return result;
}

attend::CrossEntropyOptions loss_options_of(const char* op, const attend_cross_entropy_options* options) {
  if (options == nullptr) return {};
  return {attend::abi::read_struct(op, "attend_cross_entropy_options", *options, default_loss_options()).ignore_index};
}

}  // namespace

attend_status attend_layer_norm(const attend_tensor* x, const attend_tensor* weight, const attend_tensor* bias,
                                const attend_tensor* y, double eps) {
  const char* op = "attend_layer_norm";
  return guard([&] {
    attend::layer_norm(view(op, "x", x), view(op, "weight", weight), optional_view(op, "bias", bias),
                       mutable_view(op, "y", y), eps);
  });
}

attend_status attend_layer_norm_backward(const attend_tensor* dy, const attend_tensor* x, const attend_tensor* weight,
                                         const attend_tensor* dx, const attend_tensor* dweight,
                                         const attend_tensor* dbias, double eps) {
  const char* op = "attend_layer_norm_backward";
  return guard([&] {
    attend::layer_norm_backward(
        view(op, "dy", dy), view(op, "x", x), view(op, "weight", weight),
        {mutable_view(op, "dx", dx), mutable_view(op, "dweight", dweight), optional_mutable_view(op, "dbias", dbias)},
        eps);
  });
}

attend_status attend_activation(int32_t kind, const attend_tensor* x, const attend_tensor* y) {
  const char* op = "attend_activation";
  return guard([&] { attend::activation(activation_of(kind), view(op, "x", x), mutable_view(op, "y", y)); });
}

attend_status attend_activation_backward(int32_t kind, const attend_tensor* dy, const attend_tensor* x,
                                         const attend_tensor* dx) {
  const char* op = "attend_activation_backward";
  return guard([&] {
    attend::activation_backward(activation_of(kind), view(op, "dy", dy), view(op, "x", x), mutable_view(op, "dx", dx));
  });
}

attend_status attend_gated_activation(int32_t kind, const attend_tensor* gate, const attend_tensor* up,
                                      const attend_tensor* y) {
  const char* op = "attend_gated_activation";
  return guard([&] {
    attend::gated_activation(activation_of(kind), view(op, "gate", gate), view(op, "up", up), mutable_view(op, "y", y));
  });
}

attend_status attend_gated_activation_backward(int32_t kind, const attend_tensor* dy, const attend_tensor* gate,
                                               const attend_tensor* up, const attend_tensor* dgate,
                                               const attend_tensor* dup) {
  const char* op = "attend_gated_activation_backward";
  return guard([&] {
    attend::gated_activation_backward(activation_of(kind), view(op, "dy", dy), view(op, "gate", gate),
                                      view(op, "up", up), mutable_view(op, "dgate", dgate),
                                      mutable_view(op, "dup", dup));
  });
}

attend_status attend_add(const attend_tensor* x, const attend_tensor* y, const attend_tensor* z) {
  const char* op = "attend_add";
  return guard([&] { attend::add(view(op, "x", x), view(op, "y", y), mutable_view(op, "z", z)); });
}

attend_status attend_convert(const attend_tensor* x, const attend_tensor* y) {
  const char* op = "attend_convert";
  return guard([&] { attend::convert(view(op, "x", x), mutable_view(op, "y", y)); });
}

attend_status attend_dropout(const attend_tensor* x, const attend_tensor* y, double probability, uint64_t seed) {
  const char* op = "attend_dropout";
  return guard([&] { attend::dropout(view(op, "x", x), mutable_view(op, "y", y), {probability, seed}); });
}

attend_status attend_embedding(const attend_tensor* table, const int64_t* tokens, int64_t count,
                               const attend_tensor* y) {
  const char* op = "attend_embedding";
  return guard([&] {
    attend::embedding(view(op, "table", table), integers(op, "tokens", tokens, count), mutable_view(op, "y", y));
  });
}

attend_status attend_embedding_backward(const attend_tensor* dy, const int64_t* tokens, int64_t count,
                                        const attend_tensor* dtable) {
  const char* op = "attend_embedding_backward";
  return guard([&] {
    attend::embedding_backward(view(op, "dy", dy), integers(op, "tokens", tokens, count),
                               mutable_view(op, "dtable", dtable));
  });
}

void attend_cross_entropy_options_init_sized(attend_cross_entropy_options* options, size_t size) {
  attend::abi::write_struct(options, size, default_loss_options());
}

void attend_cross_entropy_gradients_init_sized(attend_cross_entropy_gradients* gradients, size_t size) {
  attend::abi::write_struct(gradients, size, attend_cross_entropy_gradients{});
}

attend_status attend_cross_entropy(const attend_tensor* hidden, const attend_tensor* weight, const int64_t* targets,
                                   int64_t count, const attend_tensor* loss,
                                   const attend_cross_entropy_options* options) {
  const char* op = "attend_cross_entropy";
  return guard([&] {
    attend::cross_entropy(view(op, "hidden", hidden), view(op, "weight", weight),
                          integers(op, "targets", targets, count), mutable_view(op, "loss", loss),
                          loss_options_of(op, options));
  });
}

attend_status attend_cross_entropy_backward(const attend_tensor* dloss, const attend_tensor* hidden,
                                            const attend_tensor* weight, const int64_t* targets, int64_t count,
                                            const attend_cross_entropy_gradients* gradients,
                                            const attend_cross_entropy_options* options) {
  const char* op = "attend_cross_entropy_backward";
  return guard([&] {
    const attend_cross_entropy_gradients of =
        attend::abi::read_struct(op, "attend_cross_entropy_gradients", attend::abi::require(op, "gradients", gradients),
                                 attend_cross_entropy_gradients{});
    attend::cross_entropy_backward(
        view(op, "dloss", dloss), view(op, "hidden", hidden), view(op, "weight", weight),
        integers(op, "targets", targets, count),
        {optional_mutable_view(op, "dhidden", of.dhidden), optional_mutable_view(op, "dweight", of.dweight),
         optional_mutable_view(op, "loss", of.loss)},
        loss_options_of(op, options));
  });
}
