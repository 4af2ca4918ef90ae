// Which token comes next: from logits, by rules that people know, the same for the same seed.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "llm/text/tokenizer.hpp"

namespace attend::llm {

// Applied in this order: penalties, temperature, top-k, top-p, min-p, the draw.
struct Sampling {
  double temperature = 0;         // 0: always the likeliest, the smallest id among equals
  std::int64_t top_k = 0;         // the k likeliest alone; 0: all
  double top_p = 1;               // the likeliest whose probabilities reach p together
  double min_p = 0;               // those at least this likely beside the likeliest
  double repetition_penalty = 1;  // logits of tokens seen: positive ones divided by it, negative ones multiplied
  double presence_penalty = 0;    // taken off the logits of tokens generated so far
  std::uint64_t seed = 0;
  std::int64_t logprobs = 0;  // so many of the likeliest are reported beside the choice
};

// InvalidArgument names what cannot be used.
void check_sampling(const Sampling& sampling);

struct Choice {
  Token token = 0;
  double logprob = 0;                               // of the model itself, before any rule
  std::vector<std::pair<Token, double>> likeliest;  // and of the likeliest, falling
};

// `seen` are the prompt and what was generated, `generated` its last part. The draw is number `index` of the seed's
// stream: it depends on nothing else. Logits that are not finite are never chosen; if none is, InvalidArgument.
Choice sample(std::span<const float> logits, const Sampling& sampling, std::span<const Token> seen,
              std::span<const Token> generated, std::uint64_t index);

}  // namespace attend::llm
