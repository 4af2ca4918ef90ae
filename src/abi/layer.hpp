// What the handles of the layer hold.
#pragma once

#include "abi/abi.hpp"
#include "attend/multi_head_attention.hpp"

struct attend_layer {
  attend::MultiHeadAttention layer;
};
struct attend_layer_saved {
  attend::MultiHeadAttentionSaved saved;
};
struct attend_layer_gradients {
  attend::MultiHeadAttentionGradients gradients;
  std::vector<std::string> inner_names{};  // of the inner attention's parameters, in the order of gradients.inner
};
struct attend_kv_cache {
  attend::KvCache cache;
};
