// Which token comes next: rules that people know, the same choice for the same seed.
#pragma once

#if __cplusplus < 202002L
#error "attend's C++ headers need C++20 or later: compile with -std=c++20"
#endif

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "attend/export.h"

namespace attend::llm {

using Token = std::int32_t;

// Applied in this order: bias, penalties, temperature, top-k, top-p, min-p, the draw.
struct Sampling {
  double temperature = 0;         // 0: always the likeliest, the smallest id among equals
  std::int64_t top_k = 0;         // the k likeliest alone; 0: all
  double top_p = 1;               // the likeliest whose probabilities reach p together
  double min_p = 0;               // those at least this likely beside the likeliest
  double repetition_penalty = 1;  // logits of tokens seen: positive ones divided by it, negative ones multiplied
  double presence_penalty = 0;    // taken off the logits of tokens generated so far
  double frequency_penalty = 0;   // taken off as often as they were generated
  std::uint64_t seed = 0;
  std::int64_t logprobs = 0;                           // so many of the likeliest are reported beside the choice
  std::vector<std::pair<Token, double>> logit_bias{};  // added to the logits of these tokens
};

// InvalidArgument names what cannot be used.
ATTEND_API void check_sampling(const Sampling& sampling);

struct Choice {
  Token token = 0;
  double logprob = 0;                                 // of the model itself, before any rule
  std::vector<std::pair<Token, double>> likeliest{};  // and of the likeliest, falling
};

// Which tokens may come next in one answer: asked before each token, told the one that was taken.
class ATTEND_API TokenConstraint {
 public:
  virtual ~TokenConstraint();
  // A number for each token of the vocabulary: 0 where it may not come. Tokens that end an answer are not its business:
  // they may come where may_end() says so. Valid until take().
  virtual std::span<const std::uint8_t> allowed() = 0;
  virtual void take(Token token) = 0;
  virtual bool may_end() const = 0;   // what there is so far is whole
  virtual bool must_end() const = 0;  // and nothing may follow it
};

}  // namespace attend::llm
