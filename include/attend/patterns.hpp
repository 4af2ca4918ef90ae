// Sparse attention patterns by the names of their papers. Each is a mask like any other: it composes, and costs what it
// shows.
#pragma once

#include <cstdint>
#include <vector>

#include "attend/export.h"
#include "attend/mask.hpp"

namespace attend {

// Sparse Transformer (Child et al. 2019), strided: a query sees the `stride` keys before its own, its own, and every
// stride-th before. Causal: p - stride <= j <= p, or j <= p and p - j a multiple of stride.
ATTEND_API Mask strided(std::int64_t stride, const Diagonal& diagonal = Align::last_key);
// Sparse Transformer, fixed: the query's own block so far, and the last `columns` keys of every block before. Causal.
ATTEND_API Mask fixed(std::int64_t block, std::int64_t columns = 1, const Diagonal& diagonal = Align::last_key);
// Longformer (Beltagy et al. 2020): `window` keys on each side, `dilation` apart, and tokens that see all and are seen
// by all. Not causal: add `& causal()`.
ATTEND_API Mask longformer(std::int64_t window, std::int64_t dilation = 1,
                           std::vector<std::int64_t> global_positions = {}, const Diagonal& diagonal = Align::last_key);
// StreamingLLM (Xiao et al. 2023): the first `sinks` keys, and the last `window` up to the query's own. Causal.
ATTEND_API Mask streaming(std::int64_t sinks, std::int64_t window, const Diagonal& diagonal = Align::last_key);

// BigBird (Zaheer et al. 2020) in blocks: each block of queries sees `window_blocks` blocks around its own, the first
// `global_blocks`, and `random_blocks` of the others; the first `global_blocks` see all. The last query stands at the
// last key. The random ones are a function of the seed, the head and the block, so the same on every machine.
struct BigBird {
  std::int64_t block = 64;
  std::int64_t window_blocks = 3;  // odd
  std::int64_t global_blocks = 1;
  std::int64_t random_blocks = 3;
  std::int64_t heads = 1;  // patterns: one for all heads, or one for each
  std::uint64_t seed = 0;
  bool causal = false;
};
ATTEND_API Mask bigbird(std::int64_t queries, std::int64_t keys, const BigBird& options = {});

// BlockBERT (Qiu et al. 2019): queries and keys are cut into as many equal blocks (the last may be shorter), and block
// y of queries sees block permutation[y] of keys. One permutation for all heads, or one for each head.
ATTEND_API Mask block_permutation(std::int64_t queries, std::int64_t keys,
                                  const std::vector<std::vector<std::int64_t>>& permutations);
// The same with `heads` random permutations of `blocks` blocks, the same on every machine.
ATTEND_API Mask block_permutation(std::int64_t queries, std::int64_t keys, std::int64_t blocks, std::int64_t heads,
                                  std::uint64_t seed);

}  // namespace attend
