// The demo's inputs: queries, keys and values of a made-up text, so that heads have something real to look for.
#pragma once

#include <cstdint>

#include "attend/mask.hpp"
#include "attend/tensor.hpp"

namespace attend::cli {

struct Problem {
  std::int64_t heads = 8;
  std::int64_t kv_heads = 2;
  std::int64_t length = 4096;
  std::int64_t dim = 64;
  DType dtype = DType::f32;
  std::int64_t window = 0;  // keys a query sees, its own included; 0: all before it
  std::uint64_t seed = 1;
};

// The first key that query i sees.
std::int64_t first_visible(const Problem& problem, std::int64_t i);
// Query and key pairs that the mask lets through, of one head.
double visible_pairs(const Problem& problem);
// The mask of the queries from `first_query` on, keys counted from 0.
Mask mask_of(const Problem& problem, std::int64_t first_query);

struct Inputs {
  Tensor q, k, v;
};

// The same on every machine for the same problem. The text is sections on a few topics, with passages that are quoted
// again later. A key says what came before it and what its section is about; RoPE gives it a place; key 0 is a sink.
// Query head h looks for a mix of these: h % 4 is 0 for repeats, 1 for neighbours, 2 for topic, 3 for the sink.
Inputs make_inputs(const Problem& problem);
const char* looks_for(std::int64_t head);

// Rows [first, first + count) of one head.
View rows_of(const View& x, std::int64_t head, std::int64_t first, std::int64_t count);

}  // namespace attend::cli
