// Direct preference optimisation: the loss of pairs of documents, one chosen and one rejected.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "llm/train/network.hpp"

namespace attend::llm {

// The log-probability of each document's targets: minus the sum of their losses, as Network::losses() has them.
std::vector<double> document_log_probabilities(const TrainingBatch& batch, View losses);

struct DpoLoss {
  double loss = 0;    // sum over the pairs of -log sigmoid(margin): ln 2 each while the policy is the reference
  double margin = 0;  // sum of beta * ((policy - reference of chosen) - (policy - reference of rejected))
  std::int64_t pairs = 0, preferred = 0;  // those with a margin above zero
};

// Documents 2n and 2n + 1 are a pair, chosen first. `policy` and `reference` are their log-probabilities. Writes what
// the gradient of factor times the loss has for each token's loss: factors for Network::backward(). InvalidArgument for
// an odd number of documents.
DpoLoss dpo_loss(const TrainingBatch& batch, std::span<const double> policy, std::span<const double> reference,
                 double beta, double factor, std::span<double> factors);

}  // namespace attend::llm
