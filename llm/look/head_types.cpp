// What kind of head each is: means over rows without their sinks, held against a threshold each.
#include "llm/look/head_types.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <tuple>

#include "attend/error.hpp"
#include "base/random.hpp"

namespace attend::llm {
namespace {

constexpr double kMostSink = 0.95;  // rows above are left out
constexpr double kRestingSink = 0.8;
constexpr std::int64_t kLocal = 8, kRecent = 64;  // as RowStatisticsOptions has them
constexpr std::int64_t kFewestRows = 4;           // that have an equal token before them, for a score
constexpr double kMostEqual = 0.15;               // of the keys a row sees: where half of them are equal, all duplicate

struct Rule {
  const char* name;
  const char* words;
  double threshold;
};
// In the order of HeadKind.
constexpr std::array<Rule, 9> kRules = {{
    {"mixed", "none of the rules holds", 0},
    {"previous", "weight on the token before above 0.4", 0.4},
    {"self", "weight on the token itself above 0.4", 0.4},
    {"local", "weight within 8 tokens above 0.8", 0.8},
    {"induction", "weight on what followed the same token, on random tokens said twice, above 0.3", 0.3},
    {"duplicate", "weight on the same token elsewhere above 0.3", 0.3},
    {"diffuse", "entropy above 0.8 of the most it can be", 0.8},
    {"long-range", "weight outside the last 64 tokens above 0.35", 0.35},
    {"sink-resting", "median weight on sinks above 0.8, and no rule holds for the rest", kRestingSink},
}};

const Rule& rule(HeadKind kind) {
  return kRules[static_cast<std::size_t>(kind)];
}

// One head's rows, as a run has them.
class Rows {
 public:
  Rows(const Look::State& run, std::int64_t layer, std::int64_t head) : run_(run), layer_(layer), head_(head) {}

  double at(std::int64_t i, RowStatistic s) const { return at(i, static_cast<std::int64_t>(s)); }
  double at(std::int64_t i, std::int64_t column) const {
    const LookLayer& layer = run_.layers[static_cast<std::size_t>(layer_)];
    return static_cast<double>(
        layer.statistics[static_cast<std::size_t>((i * run_.config().heads + head_) * kLookStatistics + column)]);
  }
  // What is left beside the sinks, a learnt one included.
  double rest(std::int64_t i) const { return at(i, RowStatistic::mass) - at(i, RowStatistic::sink_tokens); }
  std::int64_t visible(std::int64_t i) const {
    return run_.edits.visible(layer_, head_, i, run_.prompt, run_.options.sinks);
  }
  // Of the rest, made to sum to 1.
  double entropy(std::int64_t i) const {
    const double left = rest(i);
    return (at(i, RowStatistic::entropy) - at(i, kSinkEntropy)) / left + std::log(left);
  }

 private:
  const Look::State& run_;
  std::int64_t layer_, head_;
};

struct Mean {
  double sum = 0;
  std::int64_t rows = 0;
  void add(double x) {
    sum += x;
    ++rows;
  }
  KindScore score(HeadKind kind, std::int64_t fewest = 1) const {
    const bool measured = rows >= fewest;
    return {kind, measured ? sum / static_cast<double>(rows) : 0, threshold_of(kind), measured};
  }
};

// How often each token stands before, too (for an encoder: anywhere else).
std::vector<std::int64_t> repeats(const Look::State& run) {
  std::vector<std::int64_t> result;
  for (std::int64_t i = 0; i < run.length(); ++i) {
    const auto begin = run.ids.begin() + std::min(run.options.sinks, i);
    const auto end = run.config().causal ? run.ids.begin() + i : run.ids.end();
    std::int64_t found = 0;
    for (auto it = begin; it < end; ++it)
      found += it != run.ids.begin() + i && *it == run.ids[static_cast<std::size_t>(i)];
    result.push_back(found);
  }
  return result;
}

double ratio(const KindScore& s) {
  return s.measured && s.threshold > 0 ? s.score / s.threshold : -1;
}

bool holds(const KindScore& s) {
  return s.measured && s.score > s.threshold;
}

// A head that attends everywhere also attends far back, so a diffuse head is not called long-range. The other rules are
// ordered by score / threshold.
int rank(const KindScore& s) {
  if (!holds(s)) return 3;
  return s.kind == HeadKind::long_range ? 2 : s.kind == HeadKind::diffuse ? 1 : 0;
}

void decide(HeadType& type) {
  std::vector<KindScore> order = type.scores;
  std::sort(order.begin(), order.end(), [](const KindScore& a, const KindScore& b) {
    return std::tuple(rank(a), -ratio(a), a.kind) < std::tuple(rank(b), -ratio(b), b.kind);
  });
  if (holds(order[0])) {
    type.kind = order[0];
    type.runner_up = order[1];
    return;
  }
  type.runner_up = order[0];
  type.kind = {HeadKind::mixed, 0, 0, true};
  if (type.median_sink > kRestingSink) type.kind = {HeadKind::sink_resting, type.median_sink, kRestingSink, true};
}

HeadType type_of(const Look::State& run, std::int64_t layer, std::int64_t head, const std::vector<std::int64_t>& again,
                 double induction) {
  const Rows rows(run, layer, head);
  HeadType type;
  type.layer = layer, type.head = head;
  Mean previous, self, local, duplicate, diffuse, long_range;
  std::vector<double> sinks;
  for (std::int64_t i = 0; i < run.length(); ++i) {
    const std::int64_t visible = rows.visible(i);
    if (visible < 2) continue;  // nothing to choose between
    const double left = rows.rest(i);
    sinks.push_back(1 - left);
    if (!(left >= 1 - kMostSink)) {
      ++type.left_out;
      continue;
    }
    ++type.rows;
    previous.add(rows.at(i, RowStatistic::previous) / left);
    self.add(rows.at(i, RowStatistic::self) / left);
    // Only where looking at all keys alike would not do.
    if (visible >= 2 * (kLocal + 1)) local.add(rows.at(i, RowStatistic::local) / left);
    if (visible >= 2 * (kRecent + 1)) long_range.add(1 - rows.at(i, RowStatistic::recent) / left);
    const double equal = static_cast<double>(again[static_cast<std::size_t>(i)]) / static_cast<double>(visible);
    if (equal > 0 && equal <= kMostEqual) duplicate.add(rows.at(i, RowStatistic::duplicate) / left);
    diffuse.add(rows.entropy(i) / std::log(static_cast<double>(visible)));
  }
  if (!sinks.empty()) {
    const auto middle = sinks.begin() + std::ssize(sinks) / 2;
    std::nth_element(sinks.begin(), middle, sinks.end());
    type.median_sink = *middle;
  }
  KindScore probed{HeadKind::induction, induction, threshold_of(HeadKind::induction), !std::isnan(induction)};
  if (!probed.measured) probed.score = 0;
  type.scores = {previous.score(HeadKind::previous),
                 self.score(HeadKind::self),
                 local.score(HeadKind::local),
                 probed,
                 duplicate.score(HeadKind::duplicate, kFewestRows),
                 diffuse.score(HeadKind::diffuse),
                 long_range.score(HeadKind::long_range)};
  decide(type);
  return type;
}

}  // namespace

const char* name(HeadKind kind) {
  return rule(kind).name;
}
const char* rule_of(HeadKind kind) {
  return rule(kind).words;
}
double threshold_of(HeadKind kind) {
  return rule(kind).threshold;
}

ProbeTokens probe_tokens(const ModelState& model, std::uint64_t seed) {
  constexpr std::int64_t kMost = 64;
  ProbeTokens probe;
  const SpecialTokens& special = model.tokenizer.special();
  const std::optional<Token> start = special.add_bos ? special.bos : special.cls;
  if (start) probe.tokens.push_back(*start);
  probe.first = std::ssize(probe.tokens);
  probe.count = std::min(kMost, (model.context - probe.first) / 2);
  const std::int64_t V = std::min(model.config().vocabulary, model.tokenizer.vocabulary());
  std::vector<Token> chosen;
  for (std::uint64_t n = 0; std::ssize(chosen) < probe.count && n < 64 * static_cast<std::uint64_t>(kMost); ++n) {
    const auto token = static_cast<Token>(uniform(seed, n) * static_cast<double>(V));
    const bool plain = !model.tokenizer.piece(token).empty() && !model.tokenizer.is_special(token);
    if (plain && std::find(chosen.begin(), chosen.end(), token) == chosen.end()) chosen.push_back(token);
  }
  probe.count = std::ssize(chosen);
  for (int twice = 0; twice < 2; ++twice) probe.tokens.insert(probe.tokens.end(), chosen.begin(), chosen.end());
  return probe;
}

InductionProbe read_probe(const Look::State& run, const ProbeTokens& tokens, std::uint64_t seed) {
  InductionProbe probe;
  probe.seed = seed;
  probe.tokens = tokens.count;
  for (std::int64_t layer = 0; layer < run.config().layers; ++layer)
    for (std::int64_t head = 0; head < run.config().heads; ++head) {
      const Rows rows(run, layer, head);
      Mean induction, duplicate;
      for (std::int64_t i = tokens.first + tokens.count; i < run.length(); ++i) {
        const double left = rows.rest(i);
        if (!(left >= 1 - kMostSink)) continue;
        induction.add(rows.at(i, RowStatistic::induction) / left);
        duplicate.add(rows.at(i, RowStatistic::duplicate) / left);
      }
      const auto mean = [](const Mean& m) { return m.rows > 0 ? m.sum / static_cast<double>(m.rows) : std::nan(""); };
      // Where a token sees what comes behind it, its own successor follows the same token too: that is no induction.
      probe.induction.push_back(run.config().causal ? mean(induction) : std::nan(""));
      probe.duplicate.push_back(mean(duplicate));
    }
  if (run.losses.empty()) return probe;
  Mean first, second;
  for (std::int64_t i = std::max<std::int64_t>(1, tokens.first); i < run.length(); ++i)
    (i <= tokens.first + tokens.count ? first : second)
        .add(static_cast<double>(run.losses[static_cast<std::size_t>(i)]));
  if (first.rows > 0) probe.first_loss = first.sum / static_cast<double>(first.rows);
  if (second.rows > 0) probe.second_loss = second.sum / static_cast<double>(second.rows);
  return probe;
}

std::vector<HeadType> head_types(const Look::State& run, const InductionProbe& probe) {
  if (!run.options.statistics) throw InvalidArgument("look: this run has no statistics (LookOptions::statistics)");
  const std::vector<std::int64_t> again = repeats(run);
  std::vector<HeadType> types;
  for (std::int64_t layer = 0; layer < run.config().layers; ++layer)
    for (std::int64_t head = 0; head < run.config().heads; ++head)
      types.push_back(type_of(run, layer, head, again,
                              probe.induction[static_cast<std::size_t>(layer * run.config().heads + head)]));
  return types;
}

}  // namespace attend::llm
