// Every head on the known relations of generated stories, against the best simple rule.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "attend/error.hpp"
#include "llm/look/contrast_story.hpp"
#include "llm/look/look_state.hpp"
#include "llm/look/relation_rules.hpp"
#include "llm/look/wilson.hpp"
#include "llm/train/story.hpp"

namespace attend::llm {
namespace {

constexpr double kConfidence = 0.95;  // for all heads and relations together
constexpr RelationKind kKinds[] = {RelationKind::adjective_noun, RelationKind::pronoun_antecedent,
                                   RelationKind::verb_subject, RelationKind::repeat_first};
constexpr std::size_t kKindCount = std::size(kKinds);
constexpr const char* kFixedDistance = "a fixed distance";

// From one token to the tokens of a word.
struct Case {
  std::size_t kind;
  std::int64_t query, first_key, last_key;  // inclusive
  RuleHits rules;                           // that name the word
  std::size_t story = 0;
};

// Where each token ends in the text, in bytes; empty if the tokens do not say the text back.
std::vector<std::int64_t> token_ends(const Tokenizer& tokenizer, std::span<const Token> tokens,
                                     const std::string& text) {
  std::vector<std::int64_t> ends;
  std::int64_t at = 0;
  for (const Token token : tokens) {
    if (!tokenizer.is_special(token)) {
      const std::string_view piece = tokenizer.piece(token);
      // A tokenizer may put a space before the first word.
      const std::string_view bare =
          at == 0 && piece.starts_with(' ') && !text.starts_with(' ') ? piece.substr(1) : piece;
      if (text.compare(static_cast<std::size_t>(at), bare.size(), bare) != 0) return {};
      at += std::ssize(bare);
    }
    ends.push_back(at);
  }
  return at == std::ssize(text) ? ends : std::vector<std::int64_t>{};
}

// The tokens that a word has a part in.
std::pair<std::int64_t, std::int64_t> tokens_of(const std::vector<std::int64_t>& ends, const Span& word) {
  const auto first = std::upper_bound(ends.begin(), ends.end(), word.begin);
  const auto last = std::lower_bound(ends.begin(), ends.end(), word.end);
  return {first - ends.begin(), last - ends.begin()};
}

// A causal model can look back alone: from whichever word comes later.
std::vector<Case> cases_of(const Story& story, const std::vector<std::int64_t>& ends, bool causal, std::int64_t sinks) {
  std::vector<Case> cases;
  for (const Relation& relation : story.relations) {
    Span query = relation.from, key = relation.to;
    if (causal && query.begin < key.begin) std::swap(query, key);
    const auto from = tokens_of(ends, query), to = tokens_of(ends, key);
    const auto kind = static_cast<std::size_t>(std::find(std::begin(kKinds), std::end(kKinds), relation.kind) - kKinds);
    const bool apart = from.second < to.first || to.second < from.first;
    if (apart && to.first >= sinks)
      cases.push_back({kind, from.second, to.first, to.second, rules_that_name(story, query, key)});
  }
  return cases;
}

// Hits and cases of one head (or one fixed distance) on one relation, by story.
struct Tally {
  std::int64_t cases = 0, hits = 0;
  double squares = 0, cross = 0, sizes = 0;  // sums over stories of hits^2, hits * cases, cases^2

  void add_story(std::int64_t story_cases, std::int64_t story_hits) {
    const auto m = static_cast<double>(story_cases), h = static_cast<double>(story_hits);
    cases += story_cases, hits += story_hits;
    squares += h * h, cross += h * m, sizes += m * m;
  }
  double rate() const { return cases > 0 ? static_cast<double>(hits) / static_cast<double>(cases) : 0; }
  // Cases of one story resemble each other: how many independent ones would vary as much.
  double effective() const {
    const double p = rate(), binomial = p * (1 - p) * static_cast<double>(cases);
    if (binomial <= 0) return static_cast<double>(cases);
    const double between = squares - 2 * p * cross + p * p * sizes;
    return static_cast<double>(cases) / std::max(1.0, between / binomial);
  }
};

// The cases of one relation, and what each head made of them.
class RelationCases {
 public:
  explicit RelationCases(std::int64_t heads)
      : hits_(static_cast<std::size_t>(heads)), weights_(static_cast<std::size_t>(heads)) {}

  void add(const Case& one) { cases_.push_back(one); }
  void add_hit(std::int64_t head, bool hit, double weight) {
    hits_[static_cast<std::size_t>(head)].push_back(hit);
    weights_[static_cast<std::size_t>(head)] += weight;
  }
  std::int64_t count() const { return std::ssize(cases_); }

  // Best first: the best fixed distance, and each rule that names a word.
  std::vector<RelationRule> rules() const {
    std::map<std::int64_t, std::int64_t> distances;
    std::array<std::int64_t, kRelationRules> named{};
    for (const Case& one : cases_) {
      // A word of several tokens may count for several distances.
      for (std::int64_t key = one.first_key; key <= one.last_key; ++key) ++distances[one.query - key];
      for (std::size_t rule = 0; rule < kRelationRules; ++rule) named[rule] += one.rules[rule];
    }
    const auto rate = [&](std::int64_t hits) {
      return count() > 0 ? static_cast<double>(hits) / static_cast<double>(count()) : 0;
    };
    RelationRule distance{.rule = kFixedDistance};
    for (const auto& [back, hits] : distances)
      if (rate(hits) > distance.rate) distance.rate = rate(hits), distance.distance = back;
    std::vector<RelationRule> rules = {distance};
    for (std::size_t i = 0; i < kRelationRules; ++i) {
      const RelationRule rule{.rule = rule_name(i), .rate = rate(named[i])};
      rules.insert(std::upper_bound(rules.begin(), rules.end(), rule,
                                    [](const RelationRule& a, const RelationRule& b) { return a.rate > b.rate; }),
                   rule);
    }
    return rules;
  }

  std::vector<bool> named_by(const RelationRule& rule) const {
    std::vector<bool> right;
    for (const Case& one : cases_) {
      const std::int64_t key = one.query - rule.distance;
      bool hit = rule.rule == kFixedDistance && key >= one.first_key && key <= one.last_key;
      for (std::size_t n = 0; n < kRelationRules; ++n) hit = hit || (rule.rule == rule_name(n) && one.rules[n]);
      right.push_back(hit);
    }
    return right;
  }

  Tally tally(std::int64_t head) const {
    Tally tally;
    const std::vector<bool>& hits = hits_[static_cast<std::size_t>(head)];
    for (std::size_t n = 0; n < cases_.size();) {
      std::int64_t cases = 0, found = 0;
      for (const std::size_t story = cases_[n].story; n < cases_.size() && cases_[n].story == story; ++n)
        ++cases, found += hits[n];
      tally.add_story(cases, found);
    }
    return tally;
  }
  std::int64_t hits_without(std::int64_t head, const std::vector<bool>& right) const {
    std::int64_t found = 0;
    for (std::size_t n = 0; n < right.size(); ++n) found += !right[n] && hits_[static_cast<std::size_t>(head)][n];
    return found;
  }
  double mean_weight(std::int64_t head) const {
    return count() > 0 ? weights_[static_cast<std::size_t>(head)] / static_cast<double>(count()) : 0;
  }

 private:
  std::vector<Case> cases_;
  std::vector<std::vector<bool>> hits_;  // [heads][cases]
  std::vector<double> weights_;          // on the related words, summed
};

class Scorer {
 public:
  Scorer(std::int64_t heads, std::int64_t sinks)
      : heads_(heads), sinks_(sinks), kinds_(kKindCount, RelationCases(heads)) {}

  void add(const Look& look, std::vector<Case> cases) {
    for (Case& one : cases) {
      one.story = stories_;
      kinds_[one.kind].add(one);
    }
    for (std::int64_t n = 0; n < heads_; ++n) add_head(look, cases, n);
    ++stories_;
  }

  std::vector<RelationReport> reports(std::int64_t heads_a_layer) const {
    std::vector<RelationReport> reports;
    for (std::size_t kind = 0; kind < kKindCount; ++kind) reports.push_back(report(kind, heads_a_layer));
    return reports;
  }

 private:
  RelationReport report(std::size_t kind, std::int64_t heads_a_layer) const {
    const RelationCases& cases = kinds_[kind];
    const double miss = (1 - kConfidence) / static_cast<double>(heads_ * static_cast<std::int64_t>(kKindCount));
    RelationReport report;
    report.relation = name_of(kKinds[kind]);
    report.cases = cases.count();
    report.rules = cases.rules();
    report.chance = report.rules.front().rate;
    report.confidence = 1 - miss;
    const std::vector<bool> right = cases.named_by(report.rules.front());
    report.rule_wrong = std::count(right.begin(), right.end(), false);
    for (std::int64_t n = 0; n < heads_; ++n) {
      const Tally tally = cases.tally(n);
      const Interval interval = wilson_interval(tally.rate(), tally.effective(), miss);
      report.heads.push_back({.layer = n / heads_a_layer,
                              .head = n % heads_a_layer,
                              .cases = tally.cases,
                              .hits = tally.hits,
                              .rate = tally.rate(),
                              .low = interval.low,
                              .high = interval.high,
                              .chance = report.chance,
                              .weight = cases.mean_weight(n),
                              .holds = tally.cases > 0 && interval.low > report.chance,
                              .hits_rule_wrong = cases.hits_without(n, right)});
      const RelationScore& score = report.heads.back();
      if (score.holds && (!report.best || score.rate > report.heads[static_cast<std::size_t>(*report.best)].rate))
        report.best = n;
    }
    return report;
  }

  void add_head(const Look& look, const std::vector<Case>& cases, std::int64_t n) {
    const std::vector<float> weights = look.weights(n / look.heads(), n % look.heads());
    for (const Case& one : cases) {
      const float* row = weights.data() + one.query * look.length();
      const float* largest = std::max_element(row + sinks_, row + look.length());
      const std::int64_t at = largest - row;
      double on_it = 0, all = 0;
      for (std::int64_t j = sinks_; j < look.length(); ++j) {
        all += static_cast<double>(row[j]);
        if (j >= one.first_key && j <= one.last_key) on_it += static_cast<double>(row[j]);
      }
      kinds_[one.kind].add_hit(n, *largest > 0 && at >= one.first_key && at <= one.last_key, all > 0 ? on_it / all : 0);
    }
  }

  std::int64_t heads_, sinks_;
  std::vector<RelationCases> kinds_;
  std::size_t stories_ = 0;
};

}  // namespace

std::vector<RelationReport> score_relations(LookSession& session, const RelationOptions& options) {
  if (options.stories < 1)
    throw InvalidArgument("relations: stories is " + std::to_string(options.stories) + ", expected 1 or more");
  const ModelState& model = LookAccess::state(session.model());
  LookOptions run{.switches = options.switches, .statistics = false};
  Scorer scorer(model.config().layers * model.config().heads, run.sinks);
  const Language language = options.chinese ? Language::chinese : Language::english;
  std::int64_t told = 0;
  for (std::int64_t n = 0; n < options.stories; ++n) {
    const auto number = static_cast<std::uint64_t>(n);
    const Story story =
        n % 2 == 0 ? tell_story(options.seed, number, language) : tell_contrast_story(options.seed, number, language);
    const std::vector<Token> tokens = model.tokenizer.encode(story.text);
    const std::vector<std::int64_t> ends = token_ends(model.tokenizer, tokens, story.text);
    if (!ends.empty() && std::ssize(tokens) <= model.context) {
      scorer.add(session.run(tokens, run), cases_of(story, ends, model.config().causal, run.sinks));
      ++told;
    }
    if (options.progress) options.progress(n + 1, options.stories);
  }
  if (told == 0)
    throw InvalidArgument(
        "relations: none of the stories can be told to this model: its tokenizer changes their text, "
        "or its context of " +
        std::to_string(model.context) + " tokens is too short");
  return scorer.reports(model.config().heads);
}

}  // namespace attend::llm
