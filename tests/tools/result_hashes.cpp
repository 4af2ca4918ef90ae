// Hashes of the results of random problems, a line each, so that two builds can be compared with diff:
//   result_hashes [--count N] [--first SEED] [--isa NAME]
// Attention with every mask, dtype, layout and score option, forward and backward, its observers, caches, the layers
// and variants, and the small models of tests/golden. N is 2,000 unless it is given; every instruction set runs.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "attend/attend.hpp"
#include "base/random.hpp"
#include "cpu/dispatch.hpp"
#include "support/buffer.hpp"
#include "support/check.hpp"
#include "support/kernels.hpp"
#include "unit/golden_models.hpp"

namespace attend::test {
namespace {

using std::int64_t;

class Draw {
 public:
  explicit Draw(int64_t seed) : key_(static_cast<std::uint64_t>(seed) * 7919 + 13) {}
  int64_t number(int64_t first, int64_t last) {
    const auto width = static_cast<double>(last - first + 1);
    return first + std::min(last - first, static_cast<int64_t>(uniform(key_, index_++) * width));
  }
  bool chance(int64_t one_in) { return number(1, one_in) == 1; }
  template <class T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[number(0, std::ssize(values) - 1)];
  }
  Tensor tensor(DType dtype, const Shape& shape, float gain = 1) {
    std::vector<float> values(static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * shape[3]));
    for (float& x : values) x = gain * grid_normal(key_, index_++);
    return to_tensor(dtype, shape, values);
  }

 private:
  std::uint64_t key_, index_ = 0;
};

class Hash {
 public:
  void bytes(const void* data, std::size_t count) {
    for (std::size_t n = 0; n < count; ++n)
      value_ = (value_ ^ static_cast<const unsigned char*>(data)[n]) * 1099511628211U;
  }
  template <class T>
  void add(const std::vector<T>& values) {
    if (!values.empty()) bytes(values.data(), values.size() * sizeof(T));
  }
  void add(const Tensor& x) {
    if (x.size() > 0) bytes(x.view().data, static_cast<std::size_t>(x.bytes()));
  }
  void add(const MultiHeadAttentionParameters& p) {
    for (const Tensor* x : {&p.wq, &p.wk, &p.wv, &p.wv_down, &p.wo, &p.bq, &p.bk, &p.bv, &p.bo, &p.q_norm, &p.k_norm})
      add(*x);
  }
  unsigned long long value() const { return value_; }

 private:
  std::uint64_t value_ = 14695981039346656037U;
};

DType draw_dtype(Draw& draw) {
  return draw.pick({DType::f32, DType::f32, DType::bf16, DType::bf16, DType::f16, DType::f16, DType::f64});
}

Case draw_case(Draw& draw) {
  Case c;
  c.dtype = draw_dtype(draw);
  c.B = draw.number(1, 3);
  c.Hk = draw.number(1, 3);
  c.H = c.Hk * draw.number(1, 4);
  const bool long_keys = draw.chance(6), decode = draw.chance(6);
  c.M = decode ? draw.number(1, 6) : draw.number(1, 90);
  c.N = long_keys ? draw.number(500, 1300) : draw.number(1, 200);
  if (draw.chance(15)) c.M = c.N = draw.number(520, 700);  // enough for classes of a dilation
  c.D = draw.chance(2) ? draw.pick<int64_t>({16, 32, 64, 80, 128}) : draw.number(1, 100);
  c.E = draw.chance(2) ? c.D : draw.number(1, 100);
  c.mask = static_cast<MaskKind>(draw.number(0, static_cast<int64_t>(kLastMask)));
  c.softcap = draw.chance(4) ? 5 : 0;
  c.layout = static_cast<Layout>(draw.number(0, 2));
  c.backward = true;
  if (draw.chance(3)) c.scale = static_cast<double>(draw.number(-8, 64)) / 16;
  if (draw.chance(12)) c.scale = 4096;  // scores whose LSE does not suffice
  if (draw.chance(3)) c.bias = static_cast<BiasKind>(draw.number(0, 6));
  c.f32_bias = draw.chance(2);
  if (draw.chance(5)) c.rule = static_cast<RuleKind>(draw.number(0, 3));
  if (draw.chance(4)) c.slopes = static_cast<SlopesKind>(draw.number(0, 2));
  c.sinks = draw.chance(4);
  if (draw.chance(5)) c.dropout = 0.25;
  const int64_t most = c.dtype == DType::f64 ? 1'500'000 : 12'000'000;
  const auto work = [&] { return c.B * c.H * c.M * c.N * (c.D + c.E); };
  if (work() > most) c.B = 1;
  if (work() > most) c.H /= std::exchange(c.Hk, 1);
  if (work() > most) c.H = 1;
  if (work() > most) c.D = c.E = 8;
  while (work() > most) c.M = (c.M + 1) / 2, c.N = (c.N + 1) / 2;
  return c;
}

void observe(const Case& c, const Problem& problem, Hash& hash) {
  const Tensor q = to_tensor(c.dtype, problem.q_shape(), problem.q),
               k = to_tensor(c.dtype, problem.k_shape(), problem.k),
               v = to_tensor(c.dtype, problem.v_shape(), problem.v);
  AttentionOptions options = problem.options(c.dtype);
  if (c.bias == BiasKind::none && c.sinks) options.precision = Precision::split_bf16;
  const AttentionResult plain = attention(q, k, v, options, {.lse = true, .weights = true});
  hash.add(plain.out);
  hash.add(plain.lse);
  hash.add(plain.weights);
  if (c.dtype == DType::f64) return;
  Tensor out(c.dtype, plain.out.shape()), sums(DType::f32, {c.B, c.H, c.M, 2});
  const auto values = [](int64_t n, ScoreTile<float> tile) {
    for (int64_t r = 0; r < tile.rows; ++r)
      for (int64_t x = 0; x < tile.cols; ++x)
        tile(r, x) = n == 0 ? static_cast<float>(tile.first_col + x) : static_cast<float>((tile.first_row + r) % 3);
  };
  attention(q, k, v, out, options, {.lse = {}, .weights = {}, .row_sums = RowSums{sums, values}});
  hash.add(out);
  hash.add(sums);
  std::vector<float> weights(static_cast<std::size_t>(c.B * c.H * c.M * c.N));
  visit_weights(
      q, k, plain.lse,
      [&](ScoreTile<const float> tile) {
        for (int64_t r = 0; r < tile.rows; ++r)
          std::copy_n(
              &tile(r, 0), tile.cols,
              weights.begin() + ((tile.batch * c.H + tile.head) * c.M + tile.first_row + r) * c.N + tile.first_col);
      },
      options);
  hash.add(weights);
}

void run_attention_problem(Draw& draw, Hash& hash) {
  const Case c = draw_case(draw);
  set_threads(static_cast<int>(draw.number(1, 3)));
  const Problem problem(c);
  std::vector<std::string> failures;
  const Computed got = compute(problem, c, failures);
  if (!failures.empty()) throw std::runtime_error(summary(failures));
  for (const auto* x : {&got.out, &got.lse, &got.dq, &got.dk, &got.dv, &got.dbias, &got.dsinks}) hash.add(*x);
  if (c.B * c.H * c.M * c.N <= 400'000) observe(c, problem, hash);
}

// A bias by distance and its gradient, which cases do not have.
void run_distances(Draw& draw, Hash& hash) {
  const DType dtype = draw_dtype(draw), wide = dtype == DType::f64 ? DType::f64 : DType::f32;
  const int64_t B = draw.number(1, 2), Hk = draw.number(1, 2), H = Hk * draw.number(1, 3), M = draw.number(1, 90);
  const int64_t N = draw.number(1, 150), D = draw.number(1, 40), E = draw.number(1, 40);
  const Tensor q = draw.tensor(dtype, {B, H, M, D}), k = draw.tensor(dtype, {B, Hk, N, D}),
               v = draw.tensor(dtype, {B, Hk, N, E}), dout = draw.tensor(dtype, {B, H, M, E}),
               bias = draw.tensor(wide, {1, draw.chance(2) ? H : 1, 1, M + N - 1});
  AttentionOptions options;
  options.distance_bias = bias;
  if (draw.chance(2)) options.mask = causal();
  const AttentionResult r = attention(q, k, v, options, {.lse = true});
  const AttentionGradientTensors g = attention_backward(dout, q, k, v, r.out, r.lse, options);
  for (const Tensor* x : {&r.out, &r.lse, &g.dq, &g.dk, &g.dv, &g.ddistance_bias}) hash.add(*x);
}

void run_cache(Draw& draw, Hash& hash) {
  const DType dtype = draw.pick({DType::f32, DType::bf16, DType::f16});
  const int64_t Hk = draw.number(1, 3), G = draw.number(1, 4), D = draw.number(1, 130), E = draw.number(1, 130);
  PagedKvCache cache(
      {.dtype = dtype, .kv_heads = Hk, .key_dim = D, .value_dim = E, .pages = 64, .int8 = draw.chance(3)});
  std::vector<int64_t> sequences;
  for (int64_t n = draw.number(1, 3); n > 0; --n) {
    sequences.push_back(cache.add());
    for (int64_t parts = draw.number(1, 3); parts > 0; --parts) {
      const int64_t count = draw.chance(3) ? draw.number(1, 3) : draw.number(1, 300);
      cache.append(sequences.back(), draw.tensor(dtype, {1, Hk, count, D}), draw.tensor(dtype, {1, Hk, count, E}));
    }
  }
  if (draw.chance(2)) sequences.push_back(cache.fork(sequences.front(), cache.length(sequences.front()) / 2));
  const auto B = std::ssize(sequences);
  const int64_t M = draw.chance(2) ? 1 : draw.number(1, 40);
  const Tensor q = draw.tensor(dtype, {B, Hk * G, M, D});
  Tensor out(dtype, {B, Hk * G, M, E}), lse(DType::f32, {B, Hk * G, M, 1});
  AttentionOptions options;
  options.mask = draw.chance(3) ? no_mask() : draw.chance(2) ? causal() : window(100, 0);
  if (draw.chance(4)) options.mask = options.mask & (dilated(3) | columns(5, 0));
  if (draw.chance(4)) options.softcap = 3;
  attention(q, cache, sequences, out, options, {.lse = lse.view(), .weights = {}, .row_sums = {}});
  hash.add(out);
  hash.add(lse);
}

std::shared_ptr<InnerAttention> draw_inner(Draw& draw, DType dtype, int64_t heads, int64_t kv_heads, int64_t dim,
                                           int64_t length) {
  switch (draw.number(0, 5)) {
    case 0:
      return linformer_inner({.dtype = dtype, .length = length + 5, .rank = 6, .kv_heads = kv_heads});
    case 1:
      return reformer_inner({.rounds = 2, .chunk = 16, .causal = draw.chance(2)});
    case 2:
      return adaptive_span_inner({.heads = heads, .initial_span = 9.5, .options = {.ramp = 8}});
    case 3:
      return linear_attention_inner({.causal = draw.chance(2)});
    case 4:
      return additive_attention_inner({.dtype = dtype, .heads = heads, .head_dim = dim, .options = {.mask = causal()}});
    default:
      return nullptr;
  }
}

Mask draw_mask(Draw& draw, int64_t length) {
  switch (draw.number(0, 5)) {
    case 0:
      return no_mask();
    case 1:
      return window(20, 0);
    case 2:
      return causal() & left_padding({1});
    case 3:
      return segments({0, length / 2, length}) & causal();
    case 4:
      return causal() & (dilated(2) | window(2, kUnlimited));
    default:
      return causal();
  }
}

MultiHeadAttentionConfig draw_config(Draw& draw, DType dtype) {
  MultiHeadAttentionConfig config;
  config.dtype = dtype;
  config.kv_heads = draw.number(1, 2);
  config.heads = config.kv_heads * draw.number(1, 2);
  config.head_dim = 2 * draw.number(1, 12);
  config.width = config.heads * config.head_dim;
  config.value_dim = draw.chance(2) ? 0 : draw.number(1, 20);
  config.qkv_bias = draw.chance(2);
  config.output_bias = draw.chance(2);
  config.qk_norm = draw.chance(2);
  if (draw.chance(2)) config.rope = draw.chance(2) ? RopeStyle::half_split : RopeStyle::interleaved;
  return config;
}

void run_layer(Draw& draw, Hash& hash) {
  const DType dtype = draw_dtype(draw);
  MultiHeadAttentionConfig config = draw_config(draw, dtype);
  const int64_t B = draw.number(1, 2), M = draw.number(2, 80);
  config.inner = draw_inner(draw, dtype, config.heads, config.kv_heads, config.head_dim, M);
  MultiHeadAttention layer(config);
  layer.initialise(static_cast<std::uint64_t>(draw.number(0, 1000)));
  const Tensor x = draw.tensor(dtype, {B, 1, M, config.width}), dout = draw.tensor(dtype, {B, 1, M, config.width});
  AttentionOptions options;
  if (!config.inner) options.mask = draw_mask(draw, M);
  MultiHeadAttentionSaved saved;
  hash.add(layer.forward(x, options, {.saved = &saved}));
  const MultiHeadAttentionGradients g = layer.backward(dout, saved);
  hash.add(g.dx);
  hash.add(g.parameters);
  for (const Tensor& t : g.inner) hash.add(t);
  if (config.inner) return;
  KvCache cache(layer.config(), B, M);
  hash.add(layer.step(x, cache));
}

void run_block(Draw& draw, Hash& hash) {
  const DType dtype = draw_dtype(draw);
  TransformerBlockConfig config;
  config.attention = draw_config(draw, dtype);
  config.feed_forward = draw.pick({FeedForward::swiglu, FeedForward::gelu, FeedForward::relu});
  TransformerBlock block(config);
  block.initialise(static_cast<std::uint64_t>(draw.number(0, 1000)));
  const int64_t B = draw.number(1, 2), M = draw.number(2, 80), width = config.attention.width;
  const Tensor x = draw.tensor(dtype, {B, 1, M, width}), dout = draw.tensor(dtype, {B, 1, M, width});
  AttentionOptions options;
  options.mask = draw_mask(draw, M);
  const Blockwise blockwise{draw.chance(2) ? 0 : draw.number(1, 40)};
  hash.add(block.forward(x, options, blockwise));
  const TransformerBlockGradients g = block.backward(dout, x, options, blockwise);
  hash.add(g.dx);
  hash.add(g.attention);
  for (const Tensor* t :
       {&g.parameters.norm1, &g.parameters.norm2, &g.parameters.gate, &g.parameters.up, &g.parameters.down})
    hash.add(*t);
}

void run_latent(Draw& draw, Hash& hash) {
  LatentAttentionConfig config;
  config.dtype = draw_dtype(draw);
  config.width = 24;
  config.heads = draw.number(1, 3);
  config.q_rank = draw.chance(2) ? 0 : 10;
  config.kv_rank = 12;
  config.nope_dim = draw.number(1, 10);
  config.rope_dim = 2 * draw.number(1, 4);
  config.value_dim = draw.number(1, 10);
  LatentAttention layer(config);
  layer.initialise(static_cast<std::uint64_t>(draw.number(0, 1000)));
  const int64_t B = draw.number(1, 2), M = draw.number(2, 60);
  const Tensor x = draw.tensor(config.dtype, {B, 1, M, 24}), dout = draw.tensor(config.dtype, {B, 1, M, 24});
  AttentionOptions options;
  options.mask = draw_mask(draw, M);
  LatentAttentionSaved saved;
  hash.add(layer.forward(x, options, &saved));
  const LatentAttentionGradients g = layer.backward(dout, saved);
  const LatentAttentionParameters& p = g.parameters;
  for (const Tensor* t : {&g.dx, &p.wq_down, &p.q_norm, &p.wq, &p.wkv_down, &p.kv_norm, &p.wkv_up, &p.wo}) hash.add(*t);
  LatentCache cache(config, B, 2 * M);
  hash.add(layer.prefill(x, cache));
  hash.add(layer.step(x, cache));
}

void run_problem(int64_t seed, Hash& hash) {
  Draw draw(seed);
  switch (seed % 20) {
    case 3:
      return run_distances(draw, hash);
    case 7:
    case 8:
      return run_cache(draw, hash);
    case 11:
    case 12:
      return run_layer(draw, hash);
    case 15:
      return run_block(draw, hash);
    case 17:
      return run_latent(draw, hash);
    default:
      return run_attention_problem(draw, hash);
  }
}

const char* const kModels[] = {"bert",       "gpt2",      "linear",    "llama",         "llama3",
                               "llama_bias", "minimind1", "minimind2", "minimind2_moe", "minimind3",
                               "mistral",    "qwen2",     "qwen3",     "qwen3_moe",     "yarn"};

void run_model(const char* name, Hash& hash) {
  const llm::test::GoldenModel golden(name);
  llm::Transformer model = golden.load();
  const std::vector<llm::Token> tokens = llm::test::golden_tokens(model);
  if (std::string(name) == "bert") {
    const int64_t lengths[] = {10, 14};
    return hash.add(model.embed(tokens, lengths));
  }
  hash.add(llm::test::run_alone(model, tokens, 24));
  hash.add(llm::test::run_alone(model, tokens, 5, {.tokens = 256, .dtype = DType::bf16}));
}

template <class F>
void print(const KernelTable& table, const std::string& what, const F& run) {
  Hash hash;
  std::string error;
  try {
    run(hash);
  } catch (const std::exception& e) {
    error = std::string(" ") + e.what();
  }
  std::printf("%s %s %016llx%s\n", table.name, what.c_str(), hash.value(), error.c_str());
  std::fflush(stdout);
}

int main_of(int argc, char** argv) {
  int64_t count = 2000, first = 0;
  std::string isa;
  for (int n = 1; n + 1 < argc; n += 2) {
    if (std::strcmp(argv[n], "--count") == 0) count = std::atoll(argv[n + 1]);
    if (std::strcmp(argv[n], "--first") == 0) first = std::atoll(argv[n + 1]);
    if (std::strcmp(argv[n], "--isa") == 0) isa = argv[n + 1];
  }
  prepare_kernels();
  for (const KernelTable* table : testable_kernels()) {
    if (!isa.empty() && isa != table->name) continue;
    use_kernels(*table);
    for (const char* name : kModels) print(*table, name, [&](Hash& hash) { run_model(name, hash); });
    for (int64_t seed = first; seed < first + count; ++seed)
      print(*table, std::to_string(seed), [&](Hash& hash) { run_problem(seed, hash); });
  }
  return 0;
}

}  // namespace
}  // namespace attend::test

int main(int argc, char** argv) {
  return attend::test::main_of(argc, argv);
}
