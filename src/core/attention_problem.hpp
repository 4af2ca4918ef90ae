// One attention call as the kernels see it: plain pointers, sizes and numbers, nothing to construct.
#pragma once

#include <cstdint>

#include "attend/tensor.hpp"
#include "core/softmax_state.hpp"

namespace attend {

// Fixed sizes, which never depend on the thread count: these decide the bits of every result.
inline constexpr std::int64_t kKeyTile = 64;     // keys whose scores are made at once
inline constexpr std::int64_t kKeySplit = 512;   // keys summed before the running state is merged
inline constexpr std::int64_t kChainRows = 768;  // rows whose dk and dv are summed before they go into the total

struct Operand {
  DType dtype;
  void* data;  // only outputs are written
  std::int64_t batch_stride, head_stride, row_stride, dim_stride;
};

struct MaskPlan;      // mask_plan.hpp
struct PositionPlan;  // mask_plan.hpp

struct ScoreHook {  // a user's rule behind plain functions
  void* context;
  void (*forward)(void* context, float* scores, std::int64_t row_stride, std::int64_t rows, std::int64_t cols,
                  std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j);
  void (*backward)(void* context, const float* scores, float* grad, std::int64_t row_stride, std::int64_t rows,
                   std::int64_t cols, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j);
};

// Observers: each row's sum of weight * f_n(i, j), and tiles of weights, behind plain functions.
struct RowObserver {
  void* context;
  std::int64_t count;  // functions f_n
  void (*values)(void* context, std::int64_t n, float* values, std::int64_t row_stride, std::int64_t rows,
                 std::int64_t cols, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j);
  float* sums;  // [B, H, M, count]
};
struct WeightsVisitor {
  void* context;
  void (*visit)(void* context, const float* weights, std::int64_t row_stride, std::int64_t rows, std::int64_t cols,
                std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j);
};

// What the statistics of rows are made from (see RowStatistics), and where they go. Tokens are numbered anew, so that
// floats hold them; NaN is nobody's.
struct StatisticsPlan {
  const std::int64_t* positions;  // [B, M]: p(i)
  const float* query_tokens;      // [B, M]
  const float* tokens;            // [B, token_row]: of each key; null: not known
  std::int64_t token_row;         // keys in whole tiles
  std::int64_t to_before;         // from a key's token to that of the key before it
  std::int64_t sink_tokens;
  bool sinks_apart;
  std::int64_t local_width, recent_width;
  std::int64_t reach;  // the farthest key from p(i) that counts by its place
  float* rows;         // [B, H, M, kRowStatistics]
};

// How numbers lie in a tile of keys: in the kernel's packed operand format, or smaller, to be widened when the tile is
// read.
enum class StoredAs { packed, bf16, f16, int8 };

// Keys and values in tiles, as the kernel reads them: packed once for all rows of the heads [first_head, ...) of the
// batch*Hk list, or the pages of a cache.
struct PackedTiles {
  char* data;
  std::int64_t tile_bytes, tiles_per_head, first_head;
  StoredAs stored;
  const std::int32_t* pages;  // [B, tiles_per_head]: each page holds a tile of every head; null: no pages

  // always_inline: an out-of-line copy in an object built for an instruction set could serve the others too.
  [[gnu::always_inline]] char* tile(std::int64_t b, std::int64_t hk, std::int64_t heads, std::int64_t index) const {
    if (pages) return data + (pages[b * tiles_per_head + index] * heads + hk) * tile_bytes;
    return data + ((b * heads + hk - first_head) * tiles_per_head + index) * tile_bytes;
  }
};

// A row's softmax as its weights are made again: weight = 2^((x - base) * factor + shift), x a score as the kernels
// hold it and factor what makes it an exponent of 2. Mostly base is 0 and shift the LSE; see ops/softmax_rows.hpp.
struct SoftmaxRow {
  float base, shift;
  float sink;  // the sink's weight; only where the LSE does not suffice
};

struct AttentionProblem {
  std::int64_t B, H, Hk, G, M, N, D, E;  // G = H / Hk query heads share a KV head
  Operand q, k, v, out;
  const PackedTiles* packed;  // null: a kernel packs each tile as it comes to it

  const MaskPlan* mask;
  bool split_bf16;  // Precision::split_bf16
  bool no_values;   // LSE and statistics alone are wanted: v is not read, out not written
  float scale;
  float softcap;          // 0: off
  const ScoreHook* hook;  // null: off
  const Operand* bias;    // null: off; strides of repeated dimensions are 0
  const float* alibi;     // [B, H] slopes, null: off
  const PositionPlan* alibi_position;
  const float* sinks;  // [H], null: off
  std::uint64_t dropout_seed;
  std::uint32_t dropout_threshold;  // 0: off
  float dropout_scale;              // 1 / (1 - p)

  float* lse;                        // [B, H, M], always kept when weights are wanted; null: not wanted
  const SoftmaxRow* softmax_rows;    // [B, H, M], where weights are made again: in backward, and when they are wanted
  const Operand* weights;            // null: not wanted
  const RowObserver* observer;       // null: nobody
  const WeightsVisitor* visitor;     // null: nobody
  const StatisticsPlan* statistics;  // null: not wanted

  // Backward only.
  const Operand* dout;
  const float* lse_in;  // [B, H, M]
  const float* delta;   // [B, H, M]: sum over e of dout * out
  // [B, H, M]: delta without the rounding of a bf16 or f16 output, for gradients that are stored in f32; null: delta
  const float* wide_delta;
  Operand dk, dv;
};

// The G query heads that share a KV head are packed into one row dimension, token-major: row r is token r / G of head
// hk * G + r % G. K and V are read once for all of them.
struct RowRange {
  std::int64_t b, hk;
  std::int64_t begin, end;  // rows
};

}  // namespace attend
