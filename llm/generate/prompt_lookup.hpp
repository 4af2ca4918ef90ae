// Guesses what comes next from what was said before: where the last tokens stood earlier, what followed them there.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attend/llm/sampling.hpp"

namespace attend::llm {

// At most `most` tokens that may follow `tokens`; empty where the last ones stand nowhere before.
std::vector<Token> look_up(std::span<const Token> tokens, std::int64_t most);

// How many tokens to guess for one answer: more while guesses are right, and a pause after one that was wrong.
class DraftLength {
 public:
  std::int64_t next(std::int64_t most);  // asked once a step
  void learn(std::int64_t guessed, std::int64_t right);

 private:
  std::int64_t length_ = 2, pause_ = 0, misses_ = 0;
};

}  // namespace attend::llm
