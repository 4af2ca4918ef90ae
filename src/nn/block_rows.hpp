// The score options of some of a call's queries, as if these were all there are.
#pragma once

#include <cstdint>
#include <vector>

#include "attend/attention.hpp"
#include "nn/layer_parts.hpp"

namespace attend {

// Queries [first, first + count) with options that say about query t what the call's said about first + t.
struct RowPiece {
  std::int64_t first, count;
  AttentionOptions options;
};

// Cuts queries [first, first + count) of a call with M queries and N keys into pieces whose options can be said: one,
// unless segments or blocks begin in between. The options must have been checked and outlive the pieces. Throws
// InvalidArgument for what cannot be cut.
std::vector<RowPiece> cut_rows(const AttentionOptions& options, std::int64_t M, std::int64_t N, std::int64_t first,
                               std::int64_t count);

// The part of a bias for these queries.
template <class Void>
BasicView<Void> bias_rows(const BasicView<Void>& bias, std::int64_t first, std::int64_t count) {
  return bias.length() == 1 ? bias : slice_length(bias, first, count);
}

}  // namespace attend
