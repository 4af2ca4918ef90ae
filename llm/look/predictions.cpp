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

namespace {

// log p = logit - max - log_sum; -inf where the logit is not finite.
struct LogSoftmax {
  explicit LogSoftmax(std::span<const float> logits) {
    for (const float x : logits)
      if (std::isfinite(x)) max = std::max(max, static_cast<double>(x));
    for (const float x : logits)
      if (std::isfinite(x)) log_sum += std::exp(static_cast<double>(x) - max);
    log_sum = std::log(log_sum);
  }
  double of(float logit) const {
    constexpr double kLeast = -690;  // of log p: a token that cannot come counts as one that hardly does
    return std::isfinite(logit) ? std::max(kLeast, static_cast<double>(logit) - max - log_sum) : kLeast;
  }
  double max = -std::numeric_limits<double>::infinity(), log_sum = 0;
};

}  // namespace

double divergence(std::span<const float> before, std::span<const float> after) {
  const LogSoftmax p(before), q(after);
  if (!std::isfinite(p.max) || !std::isfinite(q.max)) return std::nan("");
  double sum = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const double log_p = p.of(before[i]);
    sum += std::exp(log_p) * (log_p - q.of(after[i]));
  }
  return std::max(sum, 0.0);
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
