// The loss of direct preference optimisation.
#include "llm/train/dpo.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "attend/error.hpp"
#include "base/elements.hpp"

namespace attend::llm {

std::vector<double> document_log_probabilities(const TrainingBatch& batch, View losses) {
  std::vector<double> sums;
  for (std::size_t d = 0; d + 1 < batch.starts.size(); ++d) {
    double sum = 0;
    for (std::int64_t t = batch.starts[d]; t < batch.starts[d + 1]; ++t) sum -= load(losses, 0, 0, t, 0);
    sums.push_back(sum);
  }
  return sums;
}

DpoLoss dpo_loss(const TrainingBatch& batch, std::span<const double> policy, std::span<const double> reference,
                 double beta, double factor, std::span<double> factors) {
  const std::size_t documents = batch.starts.empty() ? 0 : batch.starts.size() - 1;
  const auto check = [](const char* what, std::size_t got, std::size_t expected) {
    if (got != expected)
      throw InvalidArgument("dpo: " + std::to_string(got) + " " + what + ", expected " + std::to_string(expected));
  };
  if (documents % 2 != 0)
    throw InvalidArgument("dpo: " + std::to_string(documents) + " documents, expected pairs: chosen, then rejected");
  check("log-probabilities of the policy", policy.size(), documents);
  check("log-probabilities of the reference", reference.size(), documents);
  check("factors", factors.size(), batch.tokens.size());
  DpoLoss result;
  for (std::size_t d = 0; d < documents; d += 2) {
    const double margin = beta * ((policy[d] - reference[d]) - (policy[d + 1] - reference[d + 1]));
    // log(1 + e^-m), from the side on which nothing overflows
    result.loss += std::log1p(std::exp(-std::abs(margin))) + std::max(0.0, -margin);
    result.margin += margin;
    result.preferred += margin > 0 ? 1 : 0;
    ++result.pairs;
    const double slope = factor * beta / (1 + std::exp(margin));
    for (std::int64_t t = batch.starts[d]; t < batch.starts[d + 2]; ++t)
      factors[static_cast<std::size_t>(t)] = t < batch.starts[d + 1] ? slope : -slope;
  }
  return result;
}

}  // namespace attend::llm
