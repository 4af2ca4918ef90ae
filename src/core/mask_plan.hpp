// A mask lowered for kernels: one interval of keys for each query, and beside it the rules that can have holes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <vector>

#include "attend/mask.hpp"

namespace attend {

// Where query i stands among the keys: p(i) = i + offset, per batch or per segment.
struct PositionPlan {
  Align align;
  SharedInts offsets;  // null: by align
};

// Every rule but blocks and dense leaves each query one interval of keys.
struct IntervalRule {
  bool from_position;        // bounds count from p(i), else they are absolute
  std::int64_t left, right;  // from_position: p - left <= j <= p + right; kUnlimited lifts a side
  PositionPlan position;
  SharedInts starts, ends;  // absolute bounds per batch; null: none
  SharedInts prefix;        // j < prefix[b] is visible whatever `right` says
};

struct MaskPlan {
  // Checks the mask against the sizes (InvalidArgument names what is wrong) and lowers it.
  MaskPlan(const Mask& mask, std::int64_t B, std::int64_t H, std::int64_t M, std::int64_t N);
  MaskPlan(const MaskPlan&) = delete;  // its lists lie inside it
  MaskPlan& operator=(const MaskPlan&) = delete;

  [[gnu::always_inline]] bool has_holes() const { return !blocks.empty() || !denses.empty(); }
  bool ragged_keys() const;  // batches may see different numbers of keys

 private:
  std::array<std::byte, 1024> room_;  // enough for the rules of nearly every mask: a call allocates nothing
  std::pmr::monotonic_buffer_resource memory_;

 public:
  std::int64_t B, M, N;
  const std::int64_t* key_lengths = nullptr;  // [B]: sequences of their own lengths, none above N; null: all N
  const std::int64_t *row_lo = nullptr, *row_hi = nullptr;  // [B, M]: an interval of each row's own; null: none
  std::pmr::vector<IntervalRule> intervals;
  SharedInts segment_queries, segment_keys;  // null: no segments
  std::pmr::vector<BlocksRule> blocks;
  std::pmr::vector<DenseRule> denses;
};

// The same check for a diagonal on its own (ALiBi).
PositionPlan lower_diagonal(const Diagonal& diagonal, const char* what, std::int64_t B);

// For queries i, i+1, ... of batch b: the keys lo[t] <= j < hi[t] that the interval rules leave (hi <= N; lo >= hi
// when there are none).
void fill_intervals(const MaskPlan& plan, std::int64_t b, std::int64_t i, std::int64_t count, std::int64_t* lo,
                    std::int64_t* hi);
// p(i), as a key index.
void fill_positions(const MaskPlan& plan, const PositionPlan& position, std::int64_t b, std::int64_t i,
                    std::int64_t count, std::int64_t* p);

enum class Coverage { none, some, all };
// What the rules with holes leave of a tile, for heads [h0, h1).
Coverage hole_coverage(const MaskPlan& plan, std::int64_t b, std::int64_t h0, std::int64_t h1, std::int64_t i0,
                       std::int64_t i1, std::int64_t j0, std::int64_t j1);
// Sets the scores of keys j0 .. j0+count that those rules hide to -inf.
void hide_holes(const MaskPlan& plan, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j0,
                std::int64_t count, float* scores);

}  // namespace attend
