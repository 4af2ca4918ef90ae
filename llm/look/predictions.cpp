// Softmax over the vocabulary.
#include "llm/look/predictions.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "attend/error.hpp"

namespace attend::llm {

std::vector<double> probabilities(std::span<const float> logits) {
  std::vector<double> p(logits.size(), 0.0);
  float most = -std::numeric_limits<float>::infinity();
  for (const float x : logits)
    if (std::isfinite(x)) most = std::max(most, x);
  if (!std::isfinite(most)) throw InvalidArgument("look: no logit is a finite number; the model's weights are broken");
  double sum = 0;
  for (std::size_t i = 0; i < p.size(); ++i)
    if (std::isfinite(logits[i])) sum += p[i] = std::exp(static_cast<double>(logits[i] - most));
  for (double& x : p) x /= sum;
  return p;
}

std::vector<NextToken> likeliest(const Tokenizer& tokenizer, std::span<const double> p, std::int64_t count) {
  std::vector<Token> order(p.size());
  std::iota(order.begin(), order.end(), 0);
  const auto last = order.begin() + std::min<std::ptrdiff_t>(count, std::ssize(order));
  const auto at = [&](Token t) { return p[static_cast<std::size_t>(t)]; };
  std::partial_sort(order.begin(), last, order.end(),
                    [&](Token a, Token b) { return at(a) != at(b) ? at(a) > at(b) : a < b; });
  std::vector<NextToken> tokens;
  for (auto it = order.begin(); it != last; ++it) tokens.push_back({*it, std::string(tokenizer.piece(*it)), at(*it)});
  return tokens;
}

}  // namespace attend::llm
