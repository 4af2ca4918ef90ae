// What each row of attention weights is like, gathered in the forward sweep itself: the matrix never exists.
#pragma once

#include <cstdint>
#include <vector>

#include "attend/mask.hpp"
#include "attend/tensor.hpp"

namespace attend {

// The columns of a row's statistics. w(i, j) is the softmax before dropout, p(i) the key at which query i stands (see
// `diagonal`). A row that sees nothing has zeros, and -1 for its argmax.
enum class RowStatistic : std::int32_t {
  mass = 0,           // sum of w: 1, less what a learned sink takes
  entropy,            // -sum of w ln w over the keys, in nats
  distance_mean,      // of p(i) - j, under the weights made to sum to 1
  distance_variance,  // of the same
  sink_tokens,        // the weight on keys 0 .. sink_tokens - 1
  self,               // on the key j = p(i)
  previous,           // on the key j = p(i) - 1
  local,              // on keys with |p(i) - j| <= local_width
  recent,             // on keys with |p(i) - j| <= recent_width
  duplicate,          // on keys with the query's token other than j = p(i); 0 without tokens
  induction,          // on keys behind the query's token: token(j - 1) = token(p(i)); 0 without tokens
  maximum,            // the largest w
  argmax,             // its key, the lowest of several; whole numbers are exact below 2^24 keys
};
inline constexpr std::int64_t kRowStatistics = 13;

struct RowStatisticsOptions {
  std::int64_t sink_tokens = 1;
  // The sink tokens count as such alone: not as self, previous, local, recent, duplicate or induction.
  bool sinks_apart = false;
  std::int64_t local_width = 8;
  std::int64_t recent_width = 64;
  Diagonal diagonal = Align::last_key;  // where query 0 stands among the keys
  std::vector<std::int32_t> tokens{};   // [B, N] of the keys, or [N] for all sequences; empty: none are known
};

struct RowStatistics {
  MutableView rows;  // [B, H, M, kRowStatistics], f32 (f64 for f64 inputs); column n is RowStatistic n
  RowStatisticsOptions options{};
};

}  // namespace attend
