// Exact attention, forward and backward, in linear memory, over strided views.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "attend/export.h"
#include "attend/mask.hpp"
#include "attend/row_statistics.hpp"
#include "attend/tensor.hpp"

namespace attend {

// A tile of scores with its place: element (r, c) is the score of query first_row + r and key first_col + c.
template <class T>
struct ScoreTile {
  T* data;
  std::int64_t row_stride;
  std::int64_t rows, cols;
  std::int64_t batch, head, first_row, first_col;

  T& operator()(std::int64_t r, std::int64_t c) const { return data[r * row_stride + c]; }
};

// A rule of the user's own: edits a tile of scores in place. The result for a score must not depend on how tiles are
// cut. Called from several threads at once, for f32/f16/bf16 with float tiles and for f64 with double ones.
class ATTEND_API ScoreRule {
 public:
  ScoreRule() = default;

  // forward(tile): tile holds the scaled, soft-capped scores and is edited in place.
  // backward(scores, grad): `scores` as forward got them; `grad` holds d/d(edited score), to become d/d(score).
  // Both are generic callables, e.g. [](auto tile) {...} and [](auto scores, auto grad) {...}.
  template <class Forward, class Backward>
  ScoreRule(Forward forward, Backward backward)
      : forward_f32(forward), forward_f64(forward), backward_f32(backward), backward_f64(backward) {}
  template <class Forward>
  explicit ScoreRule(Forward forward) : forward_f32(forward), forward_f64(forward) {}

  explicit operator bool() const { return forward_f32 || forward_f64; }

  std::function<void(ScoreTile<float>)> forward_f32;
  std::function<void(ScoreTile<double>)> forward_f64;
  std::function<void(ScoreTile<const float>, ScoreTile<float>)> backward_f32;
  std::function<void(ScoreTile<const double>, ScoreTile<double>)> backward_f64;
};

struct Dropout {
  double probability = 0;  // in [0, 1)
  std::uint64_t seed = 0;  // the kept set is a function of (seed, batch, head, query, key) alone
};

// How f32 and f16 inputs are multiplied.
enum class Precision {
  f32,
  // As hi + lo, both bf16, in three products on AMX: 16 bits of each factor count, and 16 of each weight. Forward
  // alone, and only where that is faster: on other CPUs, in backward and over a cache it is the same as f32.
  split_bf16,
};

// How a score is made, in this order:
//   s = scale * q.k;  s = softcap * tanh(s / softcap);  s = rule(s);  s += bias;  s -= slope * |p(i) - j|;  mask
struct AttentionOptions {
  Mask mask{};
  std::optional<double> scale{};  // default 1/sqrt(D); 1.0 turns scaling off
  double softcap = 0;             // 0: off
  ScoreRule rule{};
  std::optional<View> bias{};  // [1|B, 1|H, 1|M, 1|N]; a dimension of size 1 is repeated
  // Instead of `bias`, one that depends on j - i alone: [1, 1|H, 1, M + N - 1], element M - 1 + j - i is added to the
  // score of query i and key j. Linear memory for it and for its gradient.
  std::optional<View> distance_bias{};
  std::optional<View> alibi_slopes{};  // [1|B, H, 1, 1]
  Diagonal alibi_diagonal = Align::last_key;
  std::optional<View> sinks{};  // [1, H, 1, 1]: one more logit per row that takes weight and gives no value
  Dropout dropout{};
  Precision precision = Precision::f32;
};

// Each row's sum over keys of weight(i, j) * f_n(i, j), gathered in the same sweep as the output.
struct RowSums {
  MutableView sums;  // [B, H, M, count], f32
  // values(n, tile) writes f_n(i, j) for every element of the tile. Called from several threads at once.
  std::function<void(std::int64_t n, ScoreTile<float> tile)> values;
};

// On request beside the output.
struct AttentionExtras {
  std::optional<MutableView> lse{};      // [B, H, M, 1], f32 (f64 for f64 inputs): log of the sum of exp, sink included
  std::optional<MutableView> weights{};  // [B, H, M, N], any dtype: softmax before dropout
  std::optional<RowSums> row_sums{};     // not for f64
  std::optional<RowStatistics> statistics{};
};

// q [B, H, M, D], k [B, Hk, N, D], v [B, Hk, N, E] -> out [B, H, M, E], Hk dividing H; query head h reads KV head
// h / (H / Hk). All of one dtype; beside half types `out` may be f32: the sums before they are rounded. Memory beyond
// the arguments is linear in M and N. Throws InvalidArgument before touching memory.
ATTEND_API void attention(View q, View k, View v, MutableView out, const AttentionOptions& options = {},
                          const AttentionExtras& extras = {});

// Shows the weights (softmax before dropout) to `visitor` tile by tile, without storing them: a sweep over QK^T alone,
// with `lse` [B, H, M, 1] as attention() gave it for the same options. Tiles in which the mask leaves nothing are
// passed over; the tiles of one query come in rising order of keys, from one thread; several threads call at once. Not
// for f64.
using WeightVisitor = std::function<void(ScoreTile<const float>)>;
ATTEND_API void visit_weights(View q, View k, View lse, const WeightVisitor& visitor,
                              const AttentionOptions& options = {});

struct AttentionWants {
  bool lse = false;
  bool weights = false;
};
struct AttentionResult {
  Tensor out;
  Tensor lse;      // empty unless wanted
  Tensor weights;  // f32 (f64 for f64 inputs); empty unless wanted
};
ATTEND_API AttentionResult attention(View q, View k, View v, const AttentionOptions& options = {},
                                     AttentionWants wants = {});

struct AttentionGradients {
  MutableView dq, dk, dv;
  std::optional<MutableView> dbias{};           // the shape of the bias: summed over its repeated dimensions
  std::optional<MutableView> dsinks{};          // [1, H, 1, 1]
  std::optional<MutableView> ddistance_bias{};  // the shape of distance_bias
};
// `out` and `lse` as attention() gave them, with the same options. Overwrites the gradients, which may be f32 beside
// half types.
ATTEND_API void attention_backward(View dout, View q, View k, View v, View out, View lse,
                                   const AttentionGradients& gradients, const AttentionOptions& options = {});

struct AttentionGradientTensors {
  Tensor dq, dk, dv;
  Tensor dbias;           // f32 (f64 for f64); empty without a bias
  Tensor dsinks;          // f32 (f64 for f64); empty without sinks
  Tensor ddistance_bias;  // f32 (f64 for f64); empty without a distance_bias
};
ATTEND_API AttentionGradientTensors attention_backward(View dout, View q, View k, View v, View out, View lse,
                                                       const AttentionOptions& options = {});

}  // namespace attend
