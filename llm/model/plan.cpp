// Counts parameters and bytes from a description alone.
#include "llm/model/plan.hpp"

#include <algorithm>

#include "base/checked.hpp"

namespace attend::llm {
namespace {

std::int64_t product(std::initializer_list<std::int64_t> factors) {
  return checked_product("parameters", factors);
}

// Decoders of the Llama kind.
ModelConfig llama_shape(std::int64_t vocabulary, std::int64_t hidden, std::int64_t layers, std::int64_t heads,
                        std::int64_t kv_heads, std::int64_t head_dim, std::int64_t width, std::int64_t context,
                        double theta, bool tied) {
  ModelConfig c;
  c.family = "llama";
  c.vocabulary = vocabulary, c.hidden = hidden, c.layers = layers, c.heads = heads, c.kv_heads = kv_heads;
  c.head_dim = head_dim, c.feed_forward = width, c.context = context, c.rope_theta = theta, c.tied_embeddings = tied;
  return c;
}
ModelConfig qwen3_shape(std::int64_t vocabulary, std::int64_t hidden, std::int64_t layers, std::int64_t heads,
                        std::int64_t kv_heads, std::int64_t head_dim, std::int64_t width, std::int64_t context,
                        bool tied) {
  ModelConfig c = llama_shape(vocabulary, hidden, layers, heads, kv_heads, head_dim, width, context, 1e6, tied);
  c.family = "qwen3";
  c.qk_norm = true;
  c.norm_eps = 1e-6;
  return c;
}
ModelConfig gpt2_shape(std::int64_t hidden, std::int64_t layers, std::int64_t heads, std::int64_t context) {
  ModelConfig c = llama_shape(50257, hidden, layers, heads, heads, hidden / heads, 4 * hidden, context, 1e4, true);
  c.family = "gpt2";
  c.norm = NormKind::layer;
  c.positions = PositionKind::learned;
  c.activation = ActivationKind::gelu_tanh;
  c.gated = false;
  c.bias_qkv = c.bias_o = c.bias_feed_forward = true;
  return c;
}
ModelConfig bert_shape(std::int64_t hidden, std::int64_t layers, std::int64_t heads) {
  ModelConfig c = gpt2_shape(hidden, layers, heads, 512);
  c.family = "bert";
  c.vocabulary = 30522;
  c.causal = false;
  c.norm_after = c.embedding_norm = true;
  c.norm_eps = 1e-12;
  c.activation = ActivationKind::gelu;
  c.token_types = 2;
  c.pooling = PoolingKind::mean;
  return c;
}
ModelConfig minimind3_moe() {
  ModelConfig c = qwen3_shape(6400, 768, 8, 8, 4, 96, 2432, 32768, true);
  c.experts = {.count = 4, .used = 1, .shared = 0, .width = 2432, .normalised = true};
  return c;
}
ModelConfig mistral_7b() {
  ModelConfig c = llama_shape(32000, 4096, 32, 32, 8, 128, 14336, 32768, 1e4, false);
  c.window = 4096;
  return c;
}
ModelConfig qwen3_30b_a3b() {
  ModelConfig c = qwen3_shape(151936, 2048, 48, 32, 4, 128, 6144, 40960, false);
  c.experts = {.count = 128, .used = 8, .shared = 0, .width = 768, .normalised = true};
  return c;
}

}  // namespace

ParameterCounts count_parameters(const ModelConfig& c) {
  ParameterCounts n;
  const std::int64_t H = c.hidden, L = c.layers, Q = c.query_width(), K = c.kv_width();
  // Far more than all parts together: what fits cannot overflow a sum below.
  product({16, L, H, std::max({c.feed_forward, c.experts.width, Q, std::int64_t{1}}),
           c.experts.count + c.experts.shared + 1});
  n.embedding = product({c.vocabulary, H});
  if (!c.tied_embeddings) n.head = n.embedding;
  if (c.masked_head) n.head += product({H, H}) + 3 * H + c.vocabulary;
  if (c.positions == PositionKind::learned) n.positions = product({c.context, H});
  n.positions += product({c.token_types, H});
  n.queries = product({L, H, Q});
  n.keys = n.values = product({L, H, K});
  n.output = product({L, Q, H});
  std::int64_t unused = 0, feed_forward_bias = 0;
  const std::int64_t matrices = c.gated ? 3 : 2;
  for (std::int64_t layer = 0; layer < L; ++layer) {
    if (!c.has_experts(layer)) {
      n.feed_forward += product({matrices, H, c.feed_forward});
      feed_forward_bias += (matrices - 1) * c.feed_forward + H;
      continue;
    }
    const std::int64_t one = product({matrices, H, c.experts.width});
    n.feed_forward += product({one, c.experts.count + c.experts.shared});
    n.router += product({H, c.experts.count});
    unused += product({one, c.experts.count - c.experts.used});
  }
  if (c.bias_qkv) n.biases += product({L, Q + 2 * K});
  if (c.bias_o) n.biases += product({L, H});
  if (c.sinks) n.biases += product({L, c.heads});
  if (c.bias_feed_forward) n.biases += feed_forward_bias;
  const std::int64_t per_norm = c.norm == NormKind::layer ? 2 : 1;
  n.norms = product({per_norm, H, 2 * L + (c.norm_after ? 0 : 1) + (c.embedding_norm ? 1 : 0)});
  if (c.qk_norm) n.norms += product({2, L, c.head_dim});
  n.active = n.total() - unused;
  return n;
}

std::int64_t kv_bytes_per_token(const ModelConfig& c, std::int64_t bytes_per_number) {
  return checked_product("keys and values", {2, c.layers, c.kv_width(), bytes_per_number});
}

std::int64_t working_memory(const ModelConfig& c, std::int64_t tokens, std::int64_t logits, DType cache_dtype) {
  const std::int64_t Q = c.query_width(), K = c.kv_width(), width = std::max(c.feed_forward, c.experts.width);
  std::int64_t per_token = 3 * c.hidden + 2 * Q + 2 * K + (c.gated ? 2 : 1) * width + c.rotary();
  if (cache_dtype != DType::f32) per_token += Q + K;  // halves of q, k, v and the result
  if (c.experts.count > 0) per_token += 2 * c.hidden + c.experts.count;
  // The kernels' own share: tiles of scores and quantised rows.
  constexpr std::int64_t kKernels = std::int64_t{2} << 20;
  return checked_product("working memory", {4, per_token, tokens}) +
         checked_product("working memory", {4, logits, c.vocabulary + c.hidden}) + kKernels;
}

const std::vector<NamedShape>& named_shapes() {
  static const std::vector<NamedShape> shapes = {
      {"bert-base", bert_shape(768, 12, 12)},
      {"gpt-2", gpt2_shape(768, 12, 12, 1024)},
      {"gpt-2-xl", gpt2_shape(1600, 48, 25, 1024)},
      {"gpt-3", gpt2_shape(12288, 96, 96, 2048)},
      {"llama-2-7b", llama_shape(32000, 4096, 32, 32, 32, 128, 11008, 4096, 1e4, false)},
      {"llama-3-8b", llama_shape(128256, 4096, 32, 32, 8, 128, 14336, 8192, 5e5, false)},
      {"llama-3-70b", llama_shape(128256, 8192, 80, 64, 8, 128, 28672, 8192, 5e5, false)},
      {"minilm", bert_shape(384, 6, 12)},
      {"minimind2", llama_shape(6400, 768, 16, 8, 2, 96, 2048, 32768, 1e6, true)},
      {"minimind2-small", llama_shape(6400, 512, 8, 8, 2, 64, 1408, 32768, 1e6, true)},
      {"minimind-3", qwen3_shape(6400, 768, 8, 8, 4, 96, 2432, 32768, true)},
      {"minimind-3-moe", minimind3_moe()},
      {"mistral-7b", mistral_7b()},
      {"qwen3-0.6b", qwen3_shape(151936, 1024, 28, 16, 8, 128, 3072, 40960, true)},
      {"qwen3-8b", qwen3_shape(151936, 4096, 36, 32, 8, 128, 12288, 40960, false)},
      {"qwen3-30b-a3b", qwen3_30b_a3b()},
      {"smollm2-135m", llama_shape(49152, 576, 30, 9, 3, 64, 1536, 8192, 1e5, true)},
      {"smollm2-1.7b", llama_shape(49152, 2048, 24, 32, 32, 64, 8192, 8192, 1.3e5, true)},
  };
  return shapes;
}

const ModelConfig* find_shape(std::string_view name) {
  for (const NamedShape& shape : named_shapes())
    if (shape.name == name) return &shape.config;
  return nullptr;
}

}  // namespace attend::llm
