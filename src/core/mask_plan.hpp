// A mask lowered for kernels: one interval of keys for each query, and beside it the rules that can have holes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <vector>

#include "attend/mask.hpp"
#include "base/export.hpp"

namespace attend {

// Where query i stands among the keys: p(i) = i + offset, per batch or per segment.
struct PositionPlan {
  Align align;
  SharedInts offsets;  // null: by align
};

// A rule that leaves each query one interval of keys.
struct IntervalRule {
  enum class From {
    keys,      // starts[b] <= j < ends[b]; null: no bound
    position,  // p - left <= j <= p + right; kUnlimited lifts a side
    chunk,     // in chunks of `left` keys: p's own, and `right` before it
    segment,   // left <= j < right, counted from the first key of the segment
  };
  From from;
  std::int64_t left, right;
  PositionPlan position;
  SharedInts starts, ends;
  SharedInts prefix;  // position: j < prefix[b] is visible whatever `right` says
};

// first <= (j - base) mod period < first + count, where base is p(i) or the first key of the segment.
struct PeriodRule {
  bool from_position;
  PositionPlan position;
  std::int64_t period, first, count;
};

struct TokensPlan {
  SharedInts positions;  // rising
  bool queries;          // p(i) may be one of them too
  PositionPlan position;
};

struct MaskPlan;

struct AnyPlan {
  std::vector<std::unique_ptr<MaskPlan>> parts;
  bool none;  // a key is visible to none of the parts
};

struct ATTEND_FOR_RING MaskPlan {
  // Checks the mask against the sizes (InvalidArgument names what is wrong) and lowers it.
  MaskPlan(const Mask& mask, std::int64_t B, std::int64_t H, std::int64_t M, std::int64_t N);
  // How many masks this thread has lowered so far: tests see that a call lowers its mask once.
  static std::int64_t lowered();
  MaskPlan(const MaskPlan&) = delete;  // its lists lie inside it
  MaskPlan& operator=(const MaskPlan&) = delete;
  ~MaskPlan();

  [[gnu::always_inline]] bool has_holes() const { return holes; }
  bool ragged_keys() const;      // batches may see different numbers of keys
  bool differs_by_head() const;  // heads may see different keys
  // Sequences of their own lengths, [B], none above N.
  void set_key_lengths(const std::int64_t* lengths);

 private:
  struct Nesting {
    std::int64_t depth, parts;
  };
  MaskPlan(std::int64_t B, std::int64_t M, std::int64_t N);
  MaskPlan(const Mask& mask, const MaskPlan& around, std::int64_t H, Nesting& nesting);
  void lower(const Mask& mask, std::int64_t H, Nesting& nesting);

  std::array<std::byte, 1024> room_;  // enough for the rules of nearly every mask: a call allocates nothing
  std::pmr::monotonic_buffer_resource memory_;

 public:
  std::int64_t B, M, N;
  bool holes = false;                         // some rule leaves more than an interval
  const std::int64_t* key_lengths = nullptr;  // [B]: sequences of their own lengths, none above N; null: all N
  const std::int64_t *row_lo = nullptr, *row_hi = nullptr;  // [B, M]: an interval of each row's own; null: none
  std::pmr::vector<IntervalRule> intervals;
  SharedInts segment_queries, segment_keys;  // null: no segments
  std::pmr::vector<BlocksRule> blocks;
  std::pmr::vector<DenseRule> denses;
  std::pmr::vector<PeriodRule> periods;
  std::pmr::vector<TokensPlan> tokens;
  std::pmr::vector<AnyPlan> anys;
};

// The same check for a diagonal on its own (ALiBi).
PositionPlan lower_diagonal(const Diagonal& diagonal, const char* what, std::int64_t B);

// For queries i, i+1, ... of batch b: the keys lo[t] <= j < hi[t] that hold all it sees (hi <= N; lo >= hi when there
// are none).
void fill_intervals(const MaskPlan& plan, std::int64_t b, std::int64_t i, std::int64_t count, std::int64_t* lo,
                    std::int64_t* hi);
// p(i), as a key index.
void fill_positions(const MaskPlan& plan, const PositionPlan& position, std::int64_t b, std::int64_t i,
                    std::int64_t count, std::int64_t* p);

// Queries [i0, i1) of heads [h0, h1), not none, and keys [j0, j1).
struct MaskTile {
  std::int64_t b, h0, h1, i0, i1, j0, j1;
};
struct KeySpan {
  std::int64_t lo, hi;  // lo >= hi: none
};
// Holds all keys of the tile that one of its queries sees; nothing smaller is promised, but far from what a rule shows
// there is none. Its `lo` is therefore where a walk over the keys goes on. Costs the number of rules, not of queries.
KeySpan seen_keys(const MaskPlan& plan, const MaskTile& tile);
// True only if the rules with holes hide nothing of the tile.
bool sees_all(const MaskPlan& plan, const MaskTile& tile);
// Sets the scores of keys j0 .. j0+count that those rules hide to -inf; count is at most 64.
void hide_holes(const MaskPlan& plan, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j0,
                std::int64_t count, float* scores);

}  // namespace attend
