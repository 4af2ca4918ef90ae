// Every head on the known relations of generated stories, against chance.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>

#include "attend/error.hpp"
#include "llm/look/look_state.hpp"
#include "llm/look/wilson.hpp"
#include "llm/train/story.hpp"

namespace attend::llm {
namespace {

constexpr double kConfidence = 0.95;  // for all heads and relations together
constexpr RelationKind kKinds[] = {RelationKind::adjective_noun, RelationKind::pronoun_antecedent,
                                   RelationKind::verb_subject, RelationKind::repeat_first};
constexpr std::size_t kKindCount = std::size(kKinds);

// From one token to the tokens of a word.
struct Case {
  std::size_t kind;
  std::int64_t query, first_key, last_key;  // inclusive
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
    auto from = tokens_of(ends, relation.from), to = tokens_of(ends, relation.to);
    if (causal && from.second < to.first) std::swap(from, to);
    const auto kind = static_cast<std::size_t>(std::find(std::begin(kKinds), std::end(kKinds), relation.kind) - kKinds);
    const bool apart = from.second < to.first || to.second < from.first;
    if (apart && to.first >= sinks) cases.push_back({kind, from.second, to.first, to.second});
  }
  return cases;
}

// Hits and cases of one head (or one fixed distance) on one relation, by story.
struct Tally {
  std::int64_t cases = 0, hits = 0;
  double weight = 0;
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

class Scorer {
 public:
  Scorer(std::int64_t heads, std::int64_t sinks) : heads_(heads), sinks_(sinks) {
    for (auto& tallies : tallies_) tallies.resize(static_cast<std::size_t>(heads));
  }

  void add(const Look& look, const std::vector<Case>& cases) {
    std::array<std::int64_t, kKindCount> counts{};
    for (const Case& one : cases) ++counts[one.kind];
    for (std::size_t kind = 0; kind < kKindCount; ++kind) stories_[kind].push_back(counts[kind]);
    for (std::int64_t n = 0; n < heads_; ++n) add_head(look, cases, counts, n);
    // How often each distance alone would have hit: a word of several tokens may count for several distances.
    for (const Case& one : cases)
      for (std::int64_t key = one.first_key; key <= one.last_key; ++key) ++distances_[one.kind][one.query - key];
  }

  std::vector<RelationReport> reports(std::int64_t heads_a_layer) const {
    std::vector<RelationReport> reports;
    const double miss = (1 - kConfidence) / static_cast<double>(heads_ * static_cast<std::int64_t>(kKindCount));
    for (std::size_t kind = 0; kind < kKindCount; ++kind) {
      RelationReport report;
      report.relation = name_of(kKinds[kind]);
      report.confidence = 1 - miss;
      for (const std::int64_t count : stories_[kind]) report.cases += count;
      for (const auto& [distance, hits] : distances_[kind])
        if (const double rate = static_cast<double>(hits) / static_cast<double>(report.cases); rate > report.chance)
          report.chance = rate, report.distance = static_cast<double>(distance);
      for (std::int64_t n = 0; n < heads_; ++n) {
        const Tally& tally = tallies_[kind][static_cast<std::size_t>(n)];
        const Interval interval = wilson_interval(tally.rate(), tally.effective(), miss);
        report.heads.push_back({.layer = n / heads_a_layer,
                                .head = n % heads_a_layer,
                                .cases = tally.cases,
                                .hits = tally.hits,
                                .rate = tally.rate(),
                                .low = interval.low,
                                .high = interval.high,
                                .chance = report.chance,
                                .weight = tally.cases > 0 ? tally.weight / static_cast<double>(tally.cases) : 0,
                                .holds = tally.cases > 0 && interval.low > report.chance});
        const RelationScore& score = report.heads.back();
        if (score.holds && (!report.best || score.rate > report.heads[static_cast<std::size_t>(*report.best)].rate))
          report.best = n;
      }
      reports.push_back(std::move(report));
    }
    return reports;
  }

 private:
  void add_head(const Look& look, const std::vector<Case>& cases, const std::array<std::int64_t, kKindCount>& counts,
                std::int64_t n) {
    const std::vector<float> weights = look.weights(n / look.heads(), n % look.heads());
    std::array<std::int64_t, kKindCount> hits{};
    for (const Case& one : cases) {
      const float* row = weights.data() + one.query * look.length();
      const float* largest = std::max_element(row + sinks_, row + look.length());
      const std::int64_t at = largest - row;
      if (*largest > 0 && at >= one.first_key && at <= one.last_key) ++hits[one.kind];
      double on_it = 0, all = 0;
      for (std::int64_t j = sinks_; j < look.length(); ++j) {
        all += static_cast<double>(row[j]);
        if (j >= one.first_key && j <= one.last_key) on_it += static_cast<double>(row[j]);
      }
      if (all > 0) tallies_[one.kind][static_cast<std::size_t>(n)].weight += on_it / all;
    }
    for (std::size_t kind = 0; kind < kKindCount; ++kind)
      tallies_[kind][static_cast<std::size_t>(n)].add_story(counts[kind], hits[kind]);
  }

  std::int64_t heads_, sinks_;
  std::array<std::vector<Tally>, kKindCount> tallies_;
  std::array<std::vector<std::int64_t>, kKindCount> stories_;  // cases of each
  std::array<std::map<std::int64_t, std::int64_t>, kKindCount> distances_;
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
    const Story story = tell_story(options.seed, static_cast<std::uint64_t>(n), language);
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
