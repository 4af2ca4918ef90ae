// Linformer (Wang et al. 2020): keys and values are projected along the length, so that cost is linear in it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "attend/export.h"
#include "attend/inner_attention.hpp"
#include "attend/mask.hpp"
#include "attend/tensor.hpp"

namespace attend {

struct LinformerOptions {
  // Padding alone: padded keys are left out of the projections. Any other rule is refused: a projected key mixes all
  // positions, so that nothing could be hidden from a query any more.
  Mask mask{};
  std::optional<double> scale{};  // default 1/sqrt(D)
};

// out = softmax(scale * q . (E k)^T) . (F v), for q [B, H, M, D], k [B, Hk, N, D], v [B, Hk, N, V].
// E and F are [1, 1|Hk, rank, length]: one for all heads or one per KV head, rank <= length; without f, E serves both.
// N <= length: of a shorter sequence the first N columns are used. (A rank above the length is refused: it would cost
// more than exact attention. A sequence shorter than the rank is fine.) All of one dtype; lse is that of attention over
// the projected keys. Memory beyond the arguments: rank rows per KV head; inputs of half precision are widened.
struct LinformerExtras {
  std::optional<MutableView> lse{};  // [B, H, M, 1], f32 (f64 for f64)
  // E k and F v, [B, Hk, rank, D] and [B, Hk, rank, V], f32 (f64 for f64): backward need not make them again.
  std::optional<MutableView> keys{}, values{};
};
ATTEND_API void linformer(View q, View k, View v, View e, std::optional<View> f, MutableView out,
                          const LinformerOptions& options = {}, const LinformerExtras& extras = {});

struct LinformerGradients {
  MutableView dq, dk, dv;
  MutableView de;                   // the shape of e; also holds F's part where E serves both
  std::optional<MutableView> df{};  // exactly where there is an f
};
// What linformer() gave on request; both or neither.
struct LinformerProjected {
  std::optional<View> keys{}, values{};
};
// `out` and `lse` as linformer() gave them, with the same options. Overwrites the gradients; de and df may be f32
// beside inputs of half precision.
ATTEND_API void linformer_backward(View dout, View q, View k, View v, View e, std::optional<View> f, View out, View lse,
                                   const LinformerGradients& gradients, const LinformerOptions& options = {},
                                   const LinformerProjected& projected = {});

struct LinformerConfig {
  DType dtype = DType::f32;
  std::int64_t length = 0;    // the longest sequence
  std::int64_t rank = 0;      // <= length
  std::int64_t kv_heads = 1;  // 1: shared over heads; else as many as the layer has
  bool shared = false;        // E serves as F too
  std::uint64_t seed = 0;
};
// As the inner attention of a layer. Parameters "e" and, unless shared, "f": normal with variance 1 / length, so that a
// projected key is about as large as a key.
ATTEND_API std::shared_ptr<InnerAttention> linformer_inner(const LinformerConfig& config);

}  // namespace attend
