// The sweep, its three-wise cover, and the names of cases.
#include "support/cases.hpp"

#include <algorithm>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace attend::test {
namespace {

constexpr std::array<DType, 3> kDTypes = {DType::f32, DType::bf16, DType::f16};
constexpr std::array<std::int64_t, 15> kDims = {1, 8, 31, 32, 40, 59, 64, 80, 96, 111, 128, 160, 192, 224, 256};
// (queries, keys). 64 and 512 are the kernels' tile and split: lengths lie on both sides of them.
constexpr std::array<std::pair<std::int64_t, std::int64_t>, 16> kLengths = {{{0, 5},
                                                                             {5, 0},
                                                                             {1, 1},
                                                                             {1, 1024},
                                                                             {17, 33},
                                                                             {113, 203},
                                                                             {512, 256},
                                                                             {1023, 1024},
                                                                             {1, 63},
                                                                             {3, 513},
                                                                             {5, 130},
                                                                             {16, 16},
                                                                             {33, 17},
                                                                             {64, 64},
                                                                             {65, 129},
                                                                             {200, 72}}};
constexpr std::array<std::pair<std::int64_t, std::int64_t>, 3> kHeads = {{{2, 2}, {6, 2}, {4, 1}}};
// A long problem costs the double oracle seconds: fewer heads, one batch.
constexpr std::array<std::pair<std::int64_t, std::int64_t>, 3> kFewHeads = {{{2, 2}, {4, 2}, {2, 1}}};
constexpr std::array<MaskKind, 7> kMasks = {MaskKind::none,          MaskKind::causal_first, MaskKind::causal_last,
                                            MaskKind::causal_window, MaskKind::padding,      MaskKind::segments_causal,
                                            MaskKind::blocks};
constexpr std::array<double, 2> kCaps = {0, 5};
constexpr std::array<Layout, 3> kLayouts = {Layout::bhld, Layout::blhd, Layout::odd};

enum Parameter : std::size_t { kDType, kDim, kLength, kHead, kMask, kCap, kLayout };

template <class Array>
auto pick(const Array& values, int index) {
  return values[static_cast<std::size_t>(index)];
}

bool is_long(const SweepIndex& index) {
  const auto [M, N] = pick(kLengths, index[kLength]);
  return M * N > 100'000;
}

// Each triple of parameters with their values, as one number.
template <class F>
void for_triples(const SweepIndex& index, F&& f) {
  for (std::size_t a = 0; a < kSweepParameters; ++a) {
    for (std::size_t b = a + 1; b < kSweepParameters; ++b) {
      for (std::size_t c = b + 1; c < kSweepParameters; ++c) {
        const std::size_t parameters = (a * kSweepParameters + b) * kSweepParameters + c;
        const std::size_t values = static_cast<std::size_t>((index[a] * 16 + index[b]) * 16 + index[c]);
        f(parameters * 4096 + values);
      }
    }
  }
}

// Remembers which triples were met. Greedy: the candidate with the most new triples is taken.
class Cover {
 public:
  Cover() : met_(kSweepParameters * kSweepParameters * kSweepParameters * 4096) {}

  std::vector<SweepIndex> cases;

  void add_best(const std::vector<SweepIndex>& candidates) {
    const SweepIndex* best = nullptr;
    int best_gain = -1;
    for (const SweepIndex& candidate : candidates) {
      if (std::find(cases.end() - std::min<std::ptrdiff_t>(9, std::ssize(cases)), cases.end(), candidate) !=
          cases.end()) {
        continue;
      }
      int gain = 0;
      for_triples(candidate, [&](std::size_t triple) { gain += met_[triple] ? 0 : 1; });
      if (gain > best_gain) {
        best_gain = gain;
        best = &candidate;
      }
    }
    for_triples(*best, [&](std::size_t triple) { met_[triple] = true; });
    cases.push_back(*best);
  }

 private:
  std::vector<bool> met_;
};

// Every value of the given parameters, starting at a place that moves with `shift`: ties are then broken
// differently each time, and all values are used alike.
std::vector<SweepIndex> vary(const SweepIndex& base, const std::vector<Parameter>& parameters, std::size_t shift) {
  std::vector<SweepIndex> all = {base};
  for (const Parameter parameter : parameters) {
    std::vector<SweepIndex> next;
    for (SweepIndex index : all) {
      for (int value = 0; value < kSweepCounts[parameter]; ++value) {
        index[parameter] = value;
        next.push_back(index);
      }
    }
    all = std::move(next);
  }
  std::rotate(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(shift * 7 % all.size()), all.end());
  return all;
}

std::string number(double value) {
  std::string text = std::to_string(value);
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text;
}

}  // namespace

const char* name(MaskKind mask) {
  constexpr std::array<const char*, 31> kNames = {"none",           "causal_first",
                                                  "causal_last",    "causal_window",
                                                  "padding",        "segments_causal",
                                                  "blocks",         "dense",
                                                  "dense_row",      "window",
                                                  "window_right",   "prefix",
                                                  "left_padding",   "segments",
                                                  "blocks_by_head", "causal_at",
                                                  "hidden_rows",    "hidden_all",
                                                  "padding_causal", "blocks_causal",
                                                  "dense_window",   "segments_window_blocks",
                                                  "chunks",         "dilated",
                                                  "streaming",      "strided",
                                                  "fixed",          "longformer",
                                                  "bigbird",        "segments_union",
                                                  "union_except"};
  return kNames[static_cast<std::size_t>(mask)];
}

std::string Case::problem_name() const {
  constexpr std::array<const char*, 7> kBias = {"", "full", "by_batch", "by_head", "by_row", "by_key", "one"};
  constexpr std::array<const char*, 4> kRule = {"", "place", "curve", "hide"};
  std::string text;
  const auto add = [&](const char* label, const std::string& value) { text.append(label).append(value); };
  add("B", std::to_string(B));
  add("/H", std::to_string(H));
  add("k", std::to_string(Hk));
  add("/M", std::to_string(M));
  add("N", std::to_string(N));
  add("/D", std::to_string(D));
  if (E != D) add("E", std::to_string(E));
  add("/", test::name(mask));
  if (softcap != 0) add("/cap", number(softcap));
  if (scale) add("/scale", number(*scale));
  if (bias != BiasKind::none) add("/bias_", kBias[static_cast<std::size_t>(bias)]);
  if (f32_bias) text += "/f32_bias";
  if (rule != RuleKind::none) add("/rule_", kRule[static_cast<std::size_t>(rule)]);
  if (slopes != SlopesKind::none) text += slopes == SlopesKind::shared ? "/alibi" : "/alibi_by_batch";
  if (sinks) text += "/sinks";
  if (dropout != 0) add("/dropout", number(dropout));
  return text + (backward ? "/backward" : "");
}

std::string Case::name() const {
  constexpr std::array<const char*, 3> kLayoutNames = {"bhld", "blhd", "odd"};
  return std::string(attend::name(dtype)) + "/" + kLayoutNames[static_cast<std::size_t>(layout)] + "/" + problem_name();
}

Case sweep_case(const SweepIndex& index) {
  Case c;
  c.dtype = pick(kDTypes, index[kDType]);
  c.D = c.E = pick(kDims, index[kDim]);
  std::tie(c.M, c.N) = pick(kLengths, index[kLength]);
  c.B = is_long(index) ? 1 : 2;
  std::tie(c.H, c.Hk) = pick(is_long(index) ? kFewHeads : kHeads, index[kHead]);
  c.mask = pick(kMasks, index[kMask]);
  c.softcap = pick(kCaps, index[kCap]);
  c.layout = pick(kLayouts, index[kLayout]);
  // Half of the problems, spread over all parameters.
  c.backward = (index[kDim] + index[kLength] + index[kHead] + index[kMask] + index[kCap]) % 2 == 0;
  return c;
}

std::vector<SweepIndex> whole_sweep() {
  std::vector<SweepIndex> all;
  for (const SweepIndex& problem : vary({}, {kDim, kLength, kHead, kMask, kCap}, 0)) {
    for (const SweepIndex& index : vary(problem, {kDType, kLayout}, 0)) all.push_back(index);
  }
  return all;
}

// The largest triple is dim x lengths x mask: each of these is one problem, run in two or three dtypes and layouts,
// so that the oracle works once for all of them.
std::vector<SweepIndex> cover_sweep() {
  Cover cover;
  std::size_t shift = 0;
  for (const SweepIndex& base : vary({}, {kDim, kLength, kMask}, 0)) {
    cover.add_best(vary(base, {kHead, kCap, kDType, kLayout}, ++shift));
    const SweepIndex problem = cover.cases.back();
    const int more = is_long(base) ? 1 : 2;
    for (int n = 0; n < more; ++n) cover.add_best(vary(problem, {kDType, kLayout}, ++shift));
  }
  return std::move(cover.cases);
}

std::vector<Case> to_cases(const std::vector<SweepIndex>& indices) {
  std::vector<Case> cases;
  cases.reserve(indices.size());
  for (const SweepIndex& index : indices) cases.push_back(sweep_case(index));
  return cases;
}

std::vector<std::vector<Case>> group_by_problem(const std::vector<Case>& cases) {
  std::vector<std::vector<Case>> groups;
  std::unordered_map<std::string, std::size_t> place;
  for (const Case& c : cases) {
    const auto [at, is_new] = place.emplace(c.problem_name(), groups.size());
    if (is_new) groups.emplace_back();
    groups[at->second].push_back(c);
  }
  return groups;
}

}  // namespace attend::test
