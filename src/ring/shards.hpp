// How a sequence lies over the ranks, and what a block of queries sees of a block of keys.
#pragma once

#include <cstdint>
#include <vector>

#include "attend/attention.hpp"
#include "attend/ring.hpp"
#include "base/view_parts.hpp"

namespace attend::ring {

// Tokens that follow one another: `first` in the sequence, `at` in the rank's block.
struct Chunk {
  std::int64_t first, at, count;
};

// The chunks of a rank that holds `local` tokens.
std::vector<Chunk> chunks_of(RingSharding sharding, std::int64_t rank, std::int64_t ranks, std::int64_t local);

// Refuses what the ring does not know: InvalidArgument.
void check_options(const char* op, const RingOptions& options, std::int64_t local);

// Whether the order of tokens matters at all.
bool counts_positions(const AttentionOptions& options);

// False where the mask hides every key of the range from every query of the other.
bool sees(const Mask& mask, const Chunk& queries, const Chunk& keys);

// The options as attention() needs them for these queries and keys alone, heads [first_head, first_head + heads).
AttentionOptions local_options(const AttentionOptions& options, const Chunk& queries, const Chunk& keys,
                               std::int64_t first_head, std::int64_t heads);

// A number that differs, but for bad luck, where the options do.
std::int64_t hash_of(const RingOptions& options);

}  // namespace attend::ring
