// The C ABI of the transformer block: handles around it and its gradients.
#include "attend/transformer_block.hpp"

#include <array>
#include <string>
#include <utility>

#include "abi/abi.hpp"
#include "attend/attend_variants.h"

struct attend_transformer_block {
  attend::TransformerBlock block;
};
struct attend_transformer_block_gradients {
  attend::TransformerBlockGradients gradients;
};

namespace {

using attend::Tensor;
using attend::TransformerBlockGradients;
using attend::TransformerBlockParameters;

using Own = TransformerBlockParameters;
constexpr std::array<std::pair<const char*, Tensor Own::*>, 5> kOwn{
    {{"norm1", &Own::norm1}, {"norm2", &Own::norm2}, {"gate", &Own::gate}, {"up", &Own::up}, {"down", &Own::down}}};
using Gradients = TransformerBlockGradients;
constexpr std::array<std::pair<const char*, Tensor Gradients::*>, 3> kInputs{
    {{"dx", &Gradients::dx}, {"dbias", &Gradients::dbias}, {"dsinks", &Gradients::dsinks}}};

Tensor* find_either(Own& own, attend::MultiHeadAttentionParameters& attention, const char* name) {
  Tensor* found = attend::abi::find(own, kOwn, name);
  return found != nullptr ? found : attend::abi::find_parameter(attention, name);
}

attend_transformer_block_config default_config() {
  attend_transformer_block_config result{};
  result.norm_eps = attend::TransformerBlockConfig{}.norm_eps;
  return result;
}

attend::TransformerBlockConfig config_of(const char* op, const attend_transformer_block_config& config) {
  const attend_transformer_block_config given =
      attend::abi::read_struct(op, "attend_transformer_block_config", config, default_config());
  if (given.feed_forward < ATTEND_SWIGLU || given.feed_forward > ATTEND_RELU)
    attend::fail(op, "feed_forward is " + std::to_string(given.feed_forward) +
                         ", expected ATTEND_SWIGLU, ATTEND_GELU or ATTEND_RELU (0-2)");
  return {.attention = attend::abi::config_of(op, attend::abi::require(op, "attention", given.attention)),
          .feed_forward = static_cast<attend::FeedForward>(given.feed_forward),
          .hidden = given.hidden,
          .norm_eps = given.norm_eps};
}

}  // namespace

using namespace attend::abi;

void attend_transformer_block_config_init_sized(attend_transformer_block_config* config, size_t size) {
  attend::abi::write_struct(config, size, default_config());
}

attend_status attend_transformer_block_create(const attend_transformer_block_config* config,
                                              attend_transformer_block** block) {
  const char* op = "attend_transformer_block_create";
  return make(op, block, [&] { return attend::TransformerBlock(config_of(op, require(op, "config", config))); });
}

attend_status attend_transformer_block_initialise(attend_transformer_block* block, uint64_t seed) {
  return guard([&] { require("attend_transformer_block_initialise", "block", block).block.initialise(seed); });
}

attend_status attend_transformer_block_parameter(attend_transformer_block* block, const char* name,
                                                 attend_tensor* parameter) {
  return guard([&] {
    const char* op = "attend_transformer_block_parameter";
    const char* wanted = &require(op, "name", name);
    attend::TransformerBlock& of = require(op, "block", block).block;
    require(op, "parameter", parameter) =
        found(op, wanted, find_either(of.parameters(), of.attention().parameters(), wanted));
  });
}

attend_status attend_transformer_block_parameter_count(const attend_transformer_block* block, int64_t* count) {
  return guard([&] {
    const char* op = "attend_transformer_block_parameter_count";
    require(op, "count", count) = require(op, "block", block).block.parameter_count();
  });
}

attend_status attend_transformer_block_forward(const attend_transformer_block* block, const attend_tensor* x,
                                               const attend_attention_options* options, int64_t queries,
                                               const attend_tensor* out) {
  return guard([&] {
    const char* op = "attend_transformer_block_forward";
    const attend::TransformerBlock& of = require(op, "block", block).block;
    const attend::View input = view(op, "x", x);
    const attend::DType dtype = of.config().attention.dtype;
    const attend::MutableView result = attend::abi::result_view(op, "out", out, dtype, input.shape);
    const attend::AttentionOptions rules = options_of(op, options, static_cast<std::int32_t>(dtype), false);
    attend::abi::copy(of.forward(input, rules, {queries}), result);
  });
}

attend_status attend_transformer_block_backward(const attend_transformer_block* block, const attend_tensor* dout,
                                                const attend_tensor* x, const attend_attention_options* options,
                                                int64_t queries, attend_transformer_block_gradients** gradients) {
  const char* op = "attend_transformer_block_backward";
  return make(op, gradients, [&] {
    const attend::TransformerBlock& of = require(op, "block", block).block;
    const auto dtype = static_cast<std::int32_t>(of.config().attention.dtype);
    return of.backward(view(op, "dout", dout), view(op, "x", x), options_of(op, options, dtype, true), {queries});
  });
}

attend_status attend_transformer_block_gradient(attend_transformer_block_gradients* gradients, const char* name,
                                                attend_tensor* gradient) {
  return guard([&] {
    const char* op = "attend_transformer_block_gradient";
    const char* wanted = &require(op, "name", name);
    Gradients& all = require(op, "gradients", gradients).gradients;
    Tensor* tensor = attend::abi::find(all, kInputs, wanted);
    if (tensor == nullptr) tensor = find_either(all.parameters, all.attention, wanted);
    require(op, "gradient", gradient) = found(op, wanted, tensor);
  });
}

void attend_transformer_block_free(attend_transformer_block* block) {
  delete block;
}

void attend_transformer_block_gradients_free(attend_transformer_block_gradients* gradients) {
  delete gradients;
}
