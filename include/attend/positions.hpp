// Positions beside RoPE: sinusoids, learned tables, ALiBi's slopes, T5's relative bias.
#pragma once

#include <cstdint>
#include <vector>

#include "attend/export.h"
#include "attend/tensor.hpp"

namespace attend {

struct SinusoidalOptions {
  double theta = 10000.0;
  std::vector<std::int64_t> positions{};  // of each row along length; empty: first_position, first_position + 1, ...
  std::int64_t first_position = 0;
};
// out[..., p, 2i] = sin(p * theta^(-2i/D)), out[..., p, 2i + 1] = cos of the same, as "Attention Is All You Need" has
// them. Every batch and head gets the same rows.
ATTEND_API void sinusoidal(MutableView out, const SinusoidalOptions& options = {});

// y = x + table[first_position + i], table [1, 1, positions, dim]. y may be x.
ATTEND_API void add_positions(View x, View table, MutableView y, std::int64_t first_position = 0);
// The gradient of the table, overwritten: row p is the sum of dy over batches and heads at that position, zero where no
// row stood. The gradient of x is dy itself.
ATTEND_API void add_positions_backward(View dy, MutableView dtable, std::int64_t first_position = 0);

// The slopes of "Train Short, Test Long", [1, heads, 1, 1] in f32, for AttentionOptions::alibi_slopes: 2^(-8 h / heads)
// for h = 1 ... heads; where heads is no power of two, those of the power below, then every second one of the power
// above.
ATTEND_API Tensor alibi_slopes(std::int64_t heads);

struct T5Buckets {
  bool bidirectional = true;  // false: for causal use, every key to come is in bucket 0
  std::int64_t count = 32;
  std::int64_t max_distance = 128;  // from here on all distances share the last bucket
};
// The bucket of a distance, key minus query: half of them hold one distance each, the rest grow by logarithm.
ATTEND_API std::int64_t t5_bucket(std::int64_t distance, const T5Buckets& buckets = {});

// out[0, h, 0, x] = table[0, 0, t5_bucket(first_distance + x), h]: T5's bias for AttentionOptions::distance_bias. table
// is [1, 1, buckets.count, H], out [1, H, 1, any]. With M queries and N keys, out has M + N - 1 values; first_distance
// is 1 - N when the last query stands at the last key, 1 - M when the first stands at the first.
ATTEND_API void t5_bias(View table, MutableView out, std::int64_t first_distance, const T5Buckets& buckets = {});
// The gradient of the table, overwritten: each bucket's sum, in double.
ATTEND_API void t5_bias_backward(View dout, MutableView dtable, std::int64_t first_distance,
                                 const T5Buckets& buckets = {});

}  // namespace attend
