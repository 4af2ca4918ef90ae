// Penalties, temperature, top-k, top-p, min-p, then a draw from a counted stream of random numbers.
#include "llm/generate/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <unordered_set>

#include "attend/error.hpp"
#include "base/random.hpp"

namespace attend::llm {
namespace {

struct Candidate {
  Token token;
  float logit;
};

bool likelier(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

void penalise(std::vector<float>& logits, const Sampling& s, std::span<const Token> seen,
              std::span<const Token> generated) {
  const auto size = static_cast<Token>(logits.size());
  if (s.repetition_penalty != 1) {
    const auto penalty = static_cast<float>(s.repetition_penalty);
    for (const Token token : std::unordered_set<Token>(seen.begin(), seen.end())) {
      if (token < 0 || token >= size) continue;
      float& x = logits[static_cast<std::size_t>(token)];
      x = x > 0 ? x / penalty : x * penalty;
    }
  }
  if (s.presence_penalty != 0)
    for (const Token token : std::unordered_set<Token>(generated.begin(), generated.end()))
      if (token >= 0 && token < size) logits[static_cast<std::size_t>(token)] -= static_cast<float>(s.presence_penalty);
}

// log(sum(exp(x))) over the finite ones.
double log_sum_exp(std::span<const float> logits, float most) {
  double sum = 0;
  for (const float x : logits)
    if (std::isfinite(x)) sum += std::exp(static_cast<double>(x - most));
  return static_cast<double>(most) + std::log(sum);
}

Token draw(std::vector<Candidate>& candidates, const Sampling& s, std::uint64_t index) {
  if (s.top_k > 0 && s.top_k < std::ssize(candidates)) {
    std::nth_element(candidates.begin(), candidates.begin() + (s.top_k - 1), candidates.end(), likelier);
    candidates.resize(static_cast<std::size_t>(s.top_k));
  }
  std::sort(candidates.begin(), candidates.end(), likelier);
  std::vector<double> weights;
  weights.reserve(candidates.size());
  double sum = 0;
  for (const Candidate& c : candidates) {
    weights.push_back(std::exp(static_cast<double>(c.logit - candidates.front().logit) / s.temperature));
    sum += weights.back();
  }
  std::size_t kept = weights.size();
  if (s.top_p < 1) {
    double reached = 0;
    for (kept = 0; kept < weights.size() && reached < s.top_p * sum; ++kept) reached += weights[kept];
    kept = std::max<std::size_t>(kept, 1);
  }
  while (kept > 1 && weights[kept - 1] < s.min_p) --kept;  // the likeliest weighs 1
  sum = 0;
  for (std::size_t i = 0; i < kept; ++i) sum += weights[i];
  double place = uniform(s.seed, index) * sum;
  for (std::size_t i = 0; i < kept; ++i) {
    place -= weights[i];
    if (place < 0) return candidates[i].token;
  }
  return candidates[kept - 1].token;
}

}  // namespace

void check_sampling(const Sampling& s) {
  const auto refuse = [](const char* name, double got, const char* expected) {
    throw InvalidArgument(std::string(name) + " is " + std::to_string(got) + ", expected " + expected);
  };
  const auto inside = [](double x, double least, double most) { return x >= least && x <= most; };
  if (!inside(s.temperature, 0, 100)) refuse("temperature", s.temperature, "0 to 100");
  if (s.top_k < 0) refuse("top_k", static_cast<double>(s.top_k), "0 (off) or more");
  if (!inside(s.top_p, 0, 1)) refuse("top_p", s.top_p, "0 to 1");
  if (!inside(s.min_p, 0, 1)) refuse("min_p", s.min_p, "0 to 1");
  if (!inside(s.repetition_penalty, 0.01, 100)) refuse("repetition_penalty", s.repetition_penalty, "0.01 to 100");
  if (!inside(s.presence_penalty, -100, 100)) refuse("presence_penalty", s.presence_penalty, "-100 to 100");
  if (s.logprobs < 0 || s.logprobs > 100) refuse("logprobs", static_cast<double>(s.logprobs), "0 to 100");
}

Choice sample(std::span<const float> logits, const Sampling& s, std::span<const Token> seen,
              std::span<const Token> generated, std::uint64_t index) {
  std::vector<Candidate> candidates;
  const auto gather = [&](std::span<const float> from) {
    candidates.clear();
    for (std::size_t i = 0; i < from.size(); ++i)
      if (std::isfinite(from[i])) candidates.push_back({static_cast<Token>(i), from[i]});
  };
  gather(logits);
  if (candidates.empty()) throw InvalidArgument("sample: no logit is a finite number; the model's weights are broken");
  Choice choice;
  const float most = std::min_element(candidates.begin(), candidates.end(), likelier)->logit;
  const double total = log_sum_exp(logits, most);
  if (s.logprobs > 0) {
    const auto count = std::min<std::ptrdiff_t>(s.logprobs, std::ssize(candidates));
    std::partial_sort(candidates.begin(), candidates.begin() + count, candidates.end(), likelier);
    for (std::ptrdiff_t i = 0; i < count; ++i) {
      const Candidate& c = candidates[static_cast<std::size_t>(i)];
      choice.likeliest.emplace_back(c.token, static_cast<double>(c.logit) - total);
    }
  }
  if (s.repetition_penalty != 1 || s.presence_penalty != 0) {
    std::vector<float> changed(logits.begin(), logits.end());
    penalise(changed, s, seen, generated);
    gather(changed);
    if (candidates.empty()) gather(logits);  // penalties that leave nothing finite are not applied
  }
  choice.token = s.temperature == 0 ? std::min_element(candidates.begin(), candidates.end(), likelier)->token
                                    : draw(candidates, s, index);
  choice.logprob = static_cast<double>(logits[static_cast<std::size_t>(choice.token)]) - total;
  return choice;
}

}  // namespace attend::llm
