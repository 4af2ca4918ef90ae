// Masks are small values that say which keys a query may see; `&` and `|` compose them.
#pragma once

#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "attend/export.h"
#include "attend/tensor.hpp"

namespace attend {

// Where the diagonal of a causal or window rule lies when there are more keys than queries (or fewer).
enum class Align {
  first_key,  // query i stands at key i: PyTorch's is_causal ("top-left")
  last_key,   // the last query stands at the last key: right for a KV cache ("bottom-right")
};

// The key position of query 0 in each sequence: by alignment, or given outright, one offset per batch or one for all.
struct ATTEND_API Diagonal {
  Diagonal(Align a) : align(a) {}  // NOLINT(google-explicit-constructor): so that causal(Align::first_key) reads well
  static Diagonal at(std::vector<std::int64_t> offsets);

  Align align;
  std::shared_ptr<const std::vector<std::int64_t>> offsets;  // set by at(): align is then unused
};

using SharedInts = std::shared_ptr<const std::vector<std::int64_t>>;

inline constexpr std::int64_t kUnlimited = -1;

// The rules themselves. p(i) = the key position of query i; with segments, positions count within the segment.
struct CausalRule {  // j <= p(i)
  Diagonal diagonal;
};
struct WindowRule {  // p(i) - left <= j <= p(i) + right; kUnlimited lifts a side
  std::int64_t left;
  std::int64_t right;
  Diagonal diagonal;
};
struct PaddingRule {  // starts[b] <= j < ends[b]; a null side is unlimited
  SharedInts starts;
  SharedInts ends;
};
struct PrefixRule {  // j < lengths[b] or j <= p(i)
  SharedInts lengths;
  Diagonal diagonal;
};
struct SegmentsRule {  // i and j lie in the same segment; segment s holds queries [queries[s], queries[s+1])
  SharedInts queries;
  SharedInts keys;
};
struct BlocksRule {  // block (i / block_queries, j / block_keys) is set
  std::int64_t block_queries;
  std::int64_t block_keys;
  std::int64_t heads;                                     // 1 (all heads alike) or H
  std::int64_t rows;                                      // blocks along the queries
  std::int64_t cols;                                      // blocks along the keys
  std::shared_ptr<const std::vector<std::uint8_t>> bits;  // [heads, rows, cols], nonzero: visible
};
struct DenseRule {                           // element (b, h, i, j) is nonzero; a dimension of size 1 is repeated
  const std::uint8_t* data;                  // the caller's memory, not copied
  Shape shape;                               // [1|B, 1|H, 1|M, 1|N]
  Strides strides = default_strides(shape);  // in bytes
};

struct ChunksRule {  // p(i) / size - back <= j / size <= p(i) / size, each rounded down
  std::int64_t size;
  std::int64_t back;
  Diagonal diagonal;
};
struct DilatedRule {  // p(i) - j is a multiple of step
  std::int64_t step;
  Diagonal diagonal;
};
struct ColumnsRule {  // first <= j mod period < first + count
  std::int64_t period;
  std::int64_t first;
  std::int64_t count;
};
struct TokensRule {      // j is one of the positions; where `queries` is set, it is enough that p(i) is
  SharedInts positions;  // rising
  bool queries;
  Diagonal diagonal;
};
struct Mask;
struct AnyRule {  // one of the masks allows it; where `none` is set: none of them does
  std::shared_ptr<const std::vector<Mask>> masks;
  bool none;
};

using MaskRule = std::variant<CausalRule, WindowRule, PaddingRule, PrefixRule, SegmentsRule, BlocksRule, DenseRule,
                              ChunksRule, DilatedRule, ColumnsRule, TokensRule, AnyRule>;

// A key is visible when every rule allows it. The empty mask allows all.
struct Mask {
  std::vector<MaskRule> rules;
};

inline constexpr std::int64_t kDeepestMask = 8;   // unions within unions
inline constexpr std::int64_t kMostParts = 1024;  // masks within a mask, in all

ATTEND_API Mask operator&(Mask a, const Mask& b);
// What a or b allows. A side counts positions within its own segments where it has them, else within those that stand
// beside the union.
ATTEND_API Mask operator|(const Mask& a, const Mask& b);
// What `hidden` does not allow.
ATTEND_API Mask except(const Mask& hidden);

ATTEND_API Mask no_mask();
ATTEND_API Mask causal(Diagonal diagonal = Align::last_key);
// Inclusive on both sides: window(2, 0) sees the query's own key and the two before it.
ATTEND_API Mask window(std::int64_t left, std::int64_t right, Diagonal diagonal = Align::last_key);
// One side alone does not compile: it would leave open whether the keys after the query are seen.
template <class Left>
Mask window(Left) {
  static_assert(sizeof(Left) == 0,
                "window needs both sides: window(left, 0) for causal windows, window(left, kUnlimited) to see all keys "
                "after the query");
  return {};
}
// Keys from lengths[b] on are padding. One length per batch, or one for all.
ATTEND_API Mask padding(std::vector<std::int64_t> lengths);
// Keys before counts[b] are padding.
ATTEND_API Mask left_padding(std::vector<std::int64_t> counts);
// Causal, but the first lengths[b] keys are visible to every query (prefix-LM).
ATTEND_API Mask prefix(std::vector<std::int64_t> lengths, Diagonal diagonal = Align::last_key);
// Packed documents: cumulative lengths, starting at 0, never falling. Causal and window rules beside it count
// within each document. Queries and keys past the last document are padding.
ATTEND_API Mask segments(std::vector<std::int64_t> cumulative);
ATTEND_API Mask segments(std::vector<std::int64_t> cumulative_queries, std::vector<std::int64_t> cumulative_keys);
// Block-sparse: bits[heads, ceil(M / block_queries), ceil(N / block_keys)].
ATTEND_API Mask blocks(std::int64_t block_queries, std::int64_t block_keys, std::int64_t heads, std::int64_t rows,
                       std::int64_t cols, std::vector<std::uint8_t> bits);
// Local chunks: a query sees the chunk of `size` keys that it stands in, and `back` chunks before.
ATTEND_API Mask chunks(std::int64_t size, std::int64_t back = 0, Diagonal diagonal = Align::last_key);
// Every step-th key, counted from the query's own in both directions.
ATTEND_API Mask dilated(std::int64_t step, Diagonal diagonal = Align::last_key);
// `count` keys from the first on, in every `period` keys: the summary columns of a fixed pattern.
ATTEND_API Mask columns(std::int64_t period, std::int64_t first, std::int64_t count = 1);
// Keys at these positions, and no others.
ATTEND_API Mask tokens(std::vector<std::int64_t> positions);
// Tokens that see all and are seen by all: the query stands at one of the positions, or the key does.
ATTEND_API Mask global_tokens(std::vector<std::int64_t> positions, Diagonal diagonal = Align::last_key);
// A boolean matrix in the caller's memory, which must outlive the call. Strides are in bytes.
ATTEND_API Mask dense(const std::uint8_t* data, const Shape& shape, const Strides& strides);
ATTEND_API Mask dense(const std::uint8_t* data, const Shape& shape);

}  // namespace attend
