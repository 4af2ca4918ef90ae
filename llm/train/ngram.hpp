// What counting alone predicts: the losses of a unigram and of a 3-gram model, for a scale beside a network's.
#pragma once

#include <cstdint>

#include "llm/train/packing.hpp"

namespace attend::llm {

struct NgramLosses {
  double unigram = 0, trigram = 0;  // nats a token
  std::int64_t counted = 0, predicted = 0;
};

// Counts in the training documents, up to `most` tokens, and predicts the held-out ones. The 3-gram falls back to the
// 2-gram and that to the unigram with absolute discounting (0.75), as Kneser and Ney's simpler kin does.
NgramLosses ngram_losses(const DocumentSplit& split, std::int64_t vocabulary, std::int64_t most);

}  // namespace attend::llm
