// Bias, penalties, temperature, top-k, top-p, min-p, then a draw from a counted stream of random numbers.
#include "llm/generate/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <unordered_map>
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

bool changes_logits(const Sampling& s) {
  return s.repetition_penalty != 1 || s.presence_penalty != 0 || s.frequency_penalty != 0 || !s.logit_bias.empty();
}

void penalise(std::vector<float>& logits, const Sampling& s, std::span<const Token> seen,
              std::span<const Token> generated) {
  const auto size = static_cast<Token>(logits.size());
  for (const auto& [token, bias] : s.logit_bias)
    if (token >= 0 && token < size) logits[static_cast<std::size_t>(token)] += static_cast<float>(bias);
  if (s.repetition_penalty != 1) {
    const auto penalty = static_cast<float>(s.repetition_penalty);
    for (const Token token : std::unordered_set<Token>(seen.begin(), seen.end())) {
      if (token < 0 || token >= size) continue;
      float& x = logits[static_cast<std::size_t>(token)];
      x = x > 0 ? x / penalty : x * penalty;
    }
  }
  if (s.presence_penalty == 0 && s.frequency_penalty == 0) return;
  std::unordered_map<Token, std::int64_t> counts;
  for (const Token token : generated)
    if (token >= 0 && token < size) ++counts[token];
  for (const auto& [token, count] : counts)
    logits[static_cast<std::size_t>(token)] -=
        static_cast<float>(s.presence_penalty + s.frequency_penalty * static_cast<double>(count));
}

std::vector<Candidate> finite(std::span<const float> logits, std::span<const std::uint8_t> allowed) {
  std::vector<Candidate> candidates;
  candidates.reserve(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i)
    if (std::isfinite(logits[i]) && (allowed.empty() || (i < allowed.size() && allowed[i] != 0)))
      candidates.push_back({static_cast<Token>(i), logits[i]});
  return candidates;
}

// log(sum(exp(x))) over the finite ones.
double log_sum_exp(std::span<const float> logits) {
  float most = -std::numeric_limits<float>::infinity();
  for (const float x : logits)
    if (std::isfinite(x)) most = std::max(most, x);
  double sum = 0;
  for (const float x : logits)
    if (std::isfinite(x)) sum += std::exp(static_cast<double>(x - most));
  return static_cast<double>(most) + std::log(sum);
}

// The likeliest first, sorted only as far as somebody looks.
class Ranking {
 public:
  explicit Ranking(std::vector<Candidate>& candidates) : candidates_(candidates) {}
  const Candidate& operator[](std::size_t i) {
    while (i >= sorted_) {
      const std::size_t end = std::min(candidates_.size(), std::max<std::size_t>(64, 4 * sorted_));
      const auto first = candidates_.begin() + static_cast<std::ptrdiff_t>(sorted_);
      const auto last = candidates_.begin() + static_cast<std::ptrdiff_t>(end);
      if (last != candidates_.end()) std::nth_element(first, last, candidates_.end(), likelier);
      std::sort(first, last, likelier);
      sorted_ = end;
    }
    return candidates_[i];
  }

 private:
  std::vector<Candidate>& candidates_;
  std::size_t sorted_ = 0;
};

Token draw(std::vector<Candidate>& candidates, const Sampling& s, std::uint64_t index) {
  const float most = std::min_element(candidates.begin(), candidates.end(), likelier)->logit;
  if (s.top_k > 0 && s.top_k < std::ssize(candidates)) {
    std::nth_element(candidates.begin(), candidates.begin() + (s.top_k - 1), candidates.end(), likelier);
    candidates.resize(static_cast<std::size_t>(s.top_k));
    std::sort(candidates.begin(), candidates.end(), likelier);
  }
  const auto weight = [&](const Candidate& c) { return std::exp(static_cast<double>(c.logit - most) / s.temperature); };
  double sum = 0;
  for (const Candidate& c : candidates) sum += weight(c);
  Ranking ranking(candidates);
  std::size_t kept = candidates.size();
  if (s.top_p < 1 || s.min_p > 0) {
    double reached = 0;
    for (kept = 0; kept < candidates.size() && (kept == 0 || reached < s.top_p * sum); ++kept) {
      const double w = weight(ranking[kept]);
      if (kept > 0 && w < s.min_p) break;  // the likeliest weighs 1
      reached += w;
    }
    sum = reached;
  }
  double place = uniform(s.seed, index) * sum;
  for (std::size_t i = 0; i < kept; ++i) {
    place -= weight(ranking[i]);
    if (place < 0) return ranking[i].token;
  }
  return ranking[kept - 1].token;
}

}  // namespace

Sampling complete_sampling(const SamplingSettings& given, const SamplingSettings& recommended) {
  Sampling s = default_sampling();
  const auto choose = [](auto& value, const auto& first, const auto& second) {
    value = first.value_or(second.value_or(value));
  };
  choose(s.temperature, given.temperature, recommended.temperature);
  choose(s.top_k, given.top_k, recommended.top_k);
  choose(s.top_p, given.top_p, recommended.top_p);
  choose(s.min_p, given.min_p, recommended.min_p);
  choose(s.repetition_penalty, given.repetition_penalty, recommended.repetition_penalty);
  if (s.temperature == 0) s.repetition_penalty = given.repetition_penalty.value_or(1);
  return s;
}

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
  if (!inside(s.frequency_penalty, -100, 100)) refuse("frequency_penalty", s.frequency_penalty, "-100 to 100");
  for (const auto& [token, bias] : s.logit_bias)
    if (token < 0 || !inside(bias, -100, 100)) refuse("logit_bias", bias, "-100 to 100, of a token");
  if (s.logprobs < 0 || s.logprobs > 100) refuse("logprobs", static_cast<double>(s.logprobs), "0 to 100");
}

Choice rate(std::span<const float> logits, Token token, std::int64_t likeliest) {
  const double total = log_sum_exp(logits);
  Choice choice{.token = token, .logprob = static_cast<double>(logits[static_cast<std::size_t>(token)]) - total};
  if (likeliest == 0) return choice;
  std::vector<Candidate> candidates = finite(logits, {});
  const auto count = std::min<std::ptrdiff_t>(likeliest, std::ssize(candidates));
  std::partial_sort(candidates.begin(), candidates.begin() + count, candidates.end(), likelier);
  for (const Candidate& c : std::span(candidates).first(static_cast<std::size_t>(count)))
    choice.likeliest.emplace_back(c.token, static_cast<double>(c.logit) - total);
  return choice;
}

Choice sample(std::span<const float> logits, const Sampling& s, std::span<const Token> seen,
              std::span<const Token> generated, std::uint64_t index, std::span<const std::uint8_t> allowed) {
  std::vector<Candidate> candidates;
  if (changes_logits(s)) {
    std::vector<float> changed(logits.begin(), logits.end());
    penalise(changed, s, seen, generated);
    candidates = finite(changed, allowed);
  }
  if (candidates.empty()) candidates = finite(logits, allowed);  // penalties that leave nothing finite are not applied
  if (candidates.empty())
    throw InvalidArgument(allowed.empty() ? "sample: no logit is a finite number; the model's weights are broken"
                                          : "sample: no token that may come has a finite logit");
  const Token token = s.temperature == 0 ? std::min_element(candidates.begin(), candidates.end(), likelier)->token
                                         : draw(candidates, s, index);
  return rate(logits, token, s.logprobs);
}

TokenConstraint::~TokenConstraint() = default;

}  // namespace attend::llm
