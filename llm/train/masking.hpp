// Which tokens a masked language model is to tell, and what stands in their place.
#pragma once

#include <cstdint>
#include <vector>

#include "llm/text/tokenizer.hpp"
#include "llm/train/network.hpp"

namespace attend::llm {

// As BERT was trained: `share` of the tokens are targets, chosen one by one; of those 80 % become [MASK], 10 % another
// token, and 10 % stay. Special tokens are none of them.
class TokenMasker {
 public:
  // InvalidArgument for a tokenizer without [MASK].
  TokenMasker(const Tokenizer& tokenizer, double share);

  // A batch whose tokens tell themselves: those that are not chosen have no target then. What is drawn for a token
  // depends on the seed and its position alone, the first one's being `position`.
  void apply(std::uint64_t seed, std::int64_t position, TrainingBatch& batch) const;

 private:
  double share_;
  std::int64_t mask_;
  std::vector<bool> special_;
  std::vector<std::int64_t> ordinary_;
};

}  // namespace attend::llm
