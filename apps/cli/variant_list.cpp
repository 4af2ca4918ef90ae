// The attention variants that `attend variants` measures.
#include "variant_list.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>

#include "attend/attend.hpp"
#include "inputs.hpp"

namespace attend::cli {
namespace {

constexpr std::int64_t kWindow = 1024;  // keys that the windowed ones see, the query's own among them

using Call = std::function<void(MutableView)>;

constexpr std::int64_t kNoCache = -1;

// The spans that heads have learned, as different as heads are: 64, 128, ... 1024, and again.
std::int64_t span_of(std::int64_t head) {
  return std::int64_t{64} << head % 5;
}

std::int64_t square_root(std::int64_t length) {
  return std::max<std::int64_t>(1, std::llround(std::sqrt(static_cast<double>(length))));
}

std::vector<std::int64_t> first_tokens(std::int64_t count) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

std::optional<double> no_cache(std::int64_t) {
  return std::nullopt;
}

// Softmax attention over what a mask leaves. `reach` is how many keys a decoder has to keep; 0: all; kNoCache: it
// cannot decode.
Variant masked(std::string name, std::int64_t heads, std::int64_t dim, std::int64_t reach,
               std::function<Mask(std::int64_t length)> mask) {
  const double row = 2.0 * static_cast<double>(heads * dim) * sizeof(float);
  return {std::move(name), 0,
          [mask = std::move(mask)](const VariantInputs& in) -> Call {
            return [&in, options = AttentionOptions{.mask = mask(in.length())}](MutableView out) {
              attention(in.q, in.k, in.v, out, options);
            };
          },
          [row, reach](std::int64_t tokens) -> std::optional<double> {
            if (reach == kNoCache) return std::nullopt;
            return row * static_cast<double>(reach == 0 ? tokens : std::min(reach, tokens));
          }};
}

// A state of fixed size instead of keys and values.
void add_linear(std::vector<Variant>& list, std::int64_t H, std::int64_t D) {
  const auto add = [&](const char* name, std::int64_t columns, auto run) {
    const double state = static_cast<double>(H * D * columns) * sizeof(float);
    list.push_back({name, 0, [run](const VariantInputs& in) -> Call { return run(in); },
                    [state](std::int64_t) -> std::optional<double> { return state; }});
  };
  add("linear attention, elu + 1", D + 1, [](const VariantInputs& in) -> Call {
    return [&in](MutableView out) { linear_attention(in.q, in.k, in.v, out); };
  });
  add("retention", D, [H, D](const VariantInputs& in) -> Call {
    auto decay = std::make_shared<Tensor>(DType::f32, Shape{1, H, 1, 1});  // 1 - 2^(-5 - h), as the paper has it
    for (std::int64_t h = 0; h < H; ++h) {
      decay->data<float>()[h] = static_cast<float>(std::log1p(-std::exp2(-5.0 - static_cast<double>(h))));
    }
    return [&in, decay, scale = 1 / std::sqrt(static_cast<double>(D))](MutableView out) {
      linear_attention(in.q, in.k, in.v, out,
                       {.map = FeatureMap::Kind::identity, .normalise = false, .scale = scale, .log_decay = *decay});
    };
  });
  add("gated delta rule", D, [D](const VariantInputs& in) -> Call {
    auto gates = std::make_shared<std::array<Tensor, 2>>();  // a decay and a beta for every token, and keys of length 1
    (*gates)[0] = Tensor(DType::f32, {1, 1, 1, 1});
    (*gates)[1] = Tensor(DType::f32, {1, 1, 1, 1});
    (*gates)[0].data<float>()[0] = std::log(0.999F);
    (*gates)[1].data<float>()[0] = 0.5F;
    return [&in, gates, scale = 1 / std::sqrt(static_cast<double>(D))](MutableView out) {
      linear_attention(in.q, in.shared, in.v, out,
                       {.map = FeatureMap::Kind::identity,
                        .normalise = false,
                        .scale = scale,
                        .log_decay = (*gates)[0],
                        .beta = (*gates)[1]});
    };
  });
}

// Fewer keys: by a projection along the length, by a hash, by a learned span.
void add_projected(std::vector<Variant>& list, std::int64_t H, std::int64_t D) {
  const double row = 2.0 * static_cast<double>(H * D) * sizeof(float);
  list.push_back({"Linformer, rank 256", 0,
                  [](const VariantInputs& in) -> Call {
                    const std::int64_t L = in.length(), rank = std::min<std::int64_t>(256, L);
                    auto e = std::make_shared<Tensor>(DType::f32, Shape{1, 1, rank, L});
                    // As it starts to train: normal, variance 1 / length.
                    const auto inner = linformer_inner({.length = L, .rank = rank, .shared = true, .seed = 1});
                    std::memcpy(e->data<float>(), inner->parameters()[0].value.data,
                                static_cast<std::size_t>(e->bytes()));
                    return [&in, e](MutableView out) { linformer(in.q, in.k, in.v, *e, std::nullopt, out); };
                  },
                  no_cache});
  list.push_back({"Reformer, 4 rounds", 0,
                  [](const VariantInputs& in) -> Call {
                    return [&in](MutableView out) { reformer(in.q, in.v, out, {.causal = true}); };
                  },
                  [row](std::int64_t tokens) -> std::optional<double> { return row * static_cast<double>(tokens); }});
  list.push_back({"adaptive span, 64 to 1024", 0,
                  [H](const VariantInputs& in) -> Call {
                    auto span = std::make_shared<Tensor>(DType::f32, Shape{1, H, 1, 1});
                    for (std::int64_t h = 0; h < H; ++h) span->data<float>()[h] = static_cast<float>(span_of(h));
                    return [&in, span](MutableView out) { adaptive_span(in.q, in.k, in.v, *span, out); };
                  },
                  [H, D](std::int64_t tokens) -> std::optional<double> {
                    double bytes = 0;  // each head keeps its own span and ramp
                    for (std::int64_t h = 0; h < H; ++h) {
                      bytes += 2.0 * static_cast<double>(D * std::min(tokens, span_of(h) + 32)) * sizeof(float);
                    }
                    return bytes;
                  }});
}

// Scores of their own, or keys and values of their own.
void add_learned(std::vector<Variant>& list, std::int64_t H, std::int64_t D) {
  const double row = 2.0 * static_cast<double>(H * D) * sizeof(float);
  list.push_back({"additive attention", 16384,
                  [H, D](const VariantInputs& in) -> Call {
                    auto w = std::make_shared<Tensor>(DType::f32, Shape{1, H, 1, D});
                    std::fill_n(w->data<float>(), H * D, 1 / std::sqrt(static_cast<float>(D)));
                    return [&in, w](MutableView out) {
                      additive_attention(in.q, in.k, *w, in.v, out, {.mask = causal()});
                    };
                  },
                  [row](std::int64_t tokens) -> std::optional<double> { return row * static_cast<double>(tokens); }});
}

// Whole layers over the same x. `run` computes the layer's result, [1, 1, L, width].
Variant layer(const char* name, std::size_t against, double bytes_per_token, std::function<Tensor(const View& x)> run) {
  return {name, 16384,
          [run = std::move(run)](const VariantInputs& in) -> Call {
            return [&in, run](MutableView out) {
              const Tensor y = run(in.x);
              std::memcpy(out.data, y.view().data, static_cast<std::size_t>(y.bytes()));
            };
          },
          [bytes_per_token](std::int64_t tokens) -> std::optional<double> {
            return bytes_per_token * static_cast<double>(tokens);
          },
          against};
}

void add_layers(std::vector<Variant>& list, std::int64_t H, std::int64_t D) {
  const AttentionOptions causally{.mask = causal()};
  const MultiHeadAttentionConfig config{.width = H * D, .heads = H, .rope = RopeStyle::half_split};
  auto mha = std::make_shared<MultiHeadAttention>(config);
  mha->initialise(1);
  const double row = 2.0 * static_cast<double>(H * D) * sizeof(float);
  const std::size_t first = list.size();
  list.push_back(layer("multi-head attention layer", first, row,
                       [mha, causally](const View& x) { return mha->forward(x, causally); }));
  auto latent = std::make_shared<LatentAttention>(LatentAttentionConfig{.width = H * D,
                                                                        .heads = H,
                                                                        .kv_rank = std::min(2 * D, H * D),
                                                                        .nope_dim = D,
                                                                        .rope_dim = D / 4 * 2,
                                                                        .value_dim = D});
  latent->initialise(1);
  list.push_back(layer("latent attention layer (MLA)", first, static_cast<double>(latent->bytes_per_token()),
                       [latent, causally](const View& x) { return latent->forward(x, causally); }));
  auto block = std::make_shared<TransformerBlock>(TransformerBlockConfig{.attention = config});
  block->initialise(1);
  list.push_back(layer("transformer block, whole", first + 2, row,
                       [block, causally](const View& x) { return block->forward(x, causally); }));
  list.push_back(layer("transformer block, by 512 queries", first + 2, row,
                       [block, causally](const View& x) { return block->forward(x, causally, {.block = 512}); }));
}

}  // namespace

VariantInputs variant_inputs(std::int64_t heads, std::int64_t dim, std::int64_t length, std::uint64_t seed) {
  Inputs text = make_inputs({.heads = heads, .kv_heads = heads, .length = length, .dim = dim, .seed = seed});
  Tensor shared = text.q.clone();
  for (std::int64_t r = 0; r < heads * length; ++r) {
    float* row = shared.data<float>() + r * dim;
    double square = 0;
    for (std::int64_t d = 0; d < dim; ++d) square += static_cast<double>(row[d]) * static_cast<double>(row[d]);
    const double factor = square > 0 ? 1 / std::sqrt(square) : 0;
    for (std::int64_t d = 0; d < dim; ++d) row[d] = static_cast<float>(row[d] * factor);
  }
  Tensor x(DType::f32, {1, 1, length, heads * dim});
  for (std::int64_t r = 0; r < heads * length; ++r) {
    const std::int64_t h = r / length, i = r % length;
    std::memcpy(x.data<float>() + (i * heads + h) * dim, text.q.data<float>() + r * dim,
                static_cast<std::size_t>(dim) * sizeof(float));
  }
  return {std::move(text.q), std::move(text.k), std::move(text.v), std::move(shared), std::move(x)};
}

std::vector<Variant> variant_list(std::int64_t H, std::int64_t D) {
  std::vector<Variant> list;
  list.push_back(masked("exact attention", H, D, 0, [](auto) { return causal(); }));
  list.back().longest = 131072;  // quadratic
  list.push_back(
      masked(fmt::format("window {}", kWindow), H, D, kWindow, [](auto) { return causal() & window(kWindow - 1, 0); }));
  list.push_back(masked(fmt::format("4 sinks + window {}", kWindow), H, D, kWindow + 4,
                        [](auto) { return streaming(4, kWindow); }));
  list.push_back(masked("strided, every sqrt(L)", H, D, 0, [](auto L) { return strided(square_root(L)); }));
  list.push_back(masked("fixed, blocks of sqrt(L)", H, D, 0, [](auto L) { return fixed(square_root(L), 8); }));
  list.push_back(masked("Longformer 512, 16 global", H, D, 0,
                        [](auto) { return longformer(512, 1, first_tokens(16)) & causal(); }));
  list.push_back(masked("Longformer 512, dilated by 4", H, D, 0,
                        [](auto) { return longformer(512, 4, first_tokens(16)) & causal(); }));
  list.push_back(masked("BigBird, 9 + 2 + 3 blocks", H, D, 0, [H](auto L) {
    const std::int64_t block = std::clamp<std::int64_t>(L / 16, 1, 64);  // short texts have short blocks
    return bigbird(L, L, {.block = block, .window_blocks = 9, .global_blocks = 2, .heads = H, .causal = true});
  }));
  list.push_back(
      masked("BlockBERT, 8 blocks", H, D, kNoCache, [H](auto L) { return block_permutation(L, L, 8, H, 1); }));
  add_linear(list, H, D);
  add_projected(list, H, D);
  add_learned(list, H, D);
  add_layers(list, H, D);
  return list;
}

}  // namespace attend::cli
