// The sweep and the families beyond it: every element of every case within its bounds.
#include <gtest/gtest.h>

#include <cstdio>
#include <set>
#include <string>
#include <tuple>

#include "attend/runtime.hpp"
#include "support/check.hpp"

namespace attend::test {
namespace {

// Every eleventh problem: 11 shares no factor with the counts of the parameters.
std::vector<Case> thinned(const std::vector<Case>& cases) {
  std::vector<Case> kept;
  const auto groups = group_by_problem(cases);
  for (std::size_t n = 0; n < groups.size(); n += 11) kept.insert(kept.end(), groups[n].begin(), groups[n].end());
  return kept;
}

// Cases run on all CPUs at once, each on one thread.
class OneThreadPerCall {
 public:
  OneThreadPerCall() : before_(threads()) { set_threads(1); }
  ~OneThreadPerCall() { set_threads(before_); }

 private:
  int before_;
};

TEST(Cases, WholeSweepHas90720) {
  const auto whole = whole_sweep();
  EXPECT_EQ(whole.size(), 90'720U);
  EXPECT_EQ(std::set<SweepIndex>(whole.begin(), whole.end()).size(), whole.size());
}

TEST(Cases, CoverHoldsEveryTriple) {
  const auto cover = cover_sweep();
  EXPECT_GE(cover.size(), 4'000U);
  EXPECT_EQ(std::set<SweepIndex>(cover.begin(), cover.end()).size(), cover.size()) << "a case occurs twice";
  for (std::size_t a = 0; a < kSweepParameters; ++a) {
    for (std::size_t b = a + 1; b < kSweepParameters; ++b) {
      for (std::size_t c = b + 1; c < kSweepParameters; ++c) {
        std::set<std::tuple<int, int, int>> met;
        for (const SweepIndex& index : cover) met.insert({index[a], index[b], index[c]});
        const int wanted = kSweepCounts[a] * kSweepCounts[b] * kSweepCounts[c];
        EXPECT_EQ(std::ssize(met), wanted) << "parameters " << a << ", " << b << ", " << c;
      }
    }
  }
}

TEST(Cases, HalfOfTheCoverIsBackward) {
  std::size_t backward = 0;
  const auto cases = to_cases(cover_sweep());
  for (const Case& c : cases) backward += c.backward ? 1 : 0;
  EXPECT_GE(backward, cases.size() * 4 / 10);
}

TEST(Cases, NamesAreDistinct) {
  for (const auto& cases : {to_cases(whole_sweep()), extra_cases(), benchmark_cases()}) {
    std::set<std::string> names;
    for (const Case& c : cases) names.insert(c.name());
    EXPECT_EQ(names.size(), cases.size());
  }
}

// The sweep pins the truth to the reference where that is cheap; here are long problems, one for each mask.
TEST(Sweep, TruthIsTheReferenceAtLength) {
  if (sweep_mode() == "quick") GTEST_SKIP() << "the reference is slow";
  run_parallel(7, [](std::int64_t mask) {
    Case c;
    c.H = 2;
    c.M = 513;
    c.N = 1024;
    c.D = 40;
    c.E = 24;
    c.mask = static_cast<MaskKind>(mask);
    c.backward = true;
    const Problem problem(c);
    const auto failures = check_truth(problem, true_attention(problem));
    EXPECT_TRUE(failures.empty()) << c.problem_name() << ": " << summary(failures);
  });
}

TEST(Sweep, EveryElementWithinBounds) {
  const std::string mode = sweep_mode();
  std::vector<Case> cases = to_cases(mode == "all" ? whole_sweep() : cover_sweep());
  if (mode == "quick") cases = thinned(cases);
  std::printf("%zu cases\n", cases.size());
  const OneThreadPerCall one;
  const auto failures = check_cases(cases, mode == "all");
  EXPECT_TRUE(failures.empty()) << summary(failures);
}

TEST(Extras, EveryElementWithinBounds) {
  std::vector<Case> cases = extra_cases();
  if (sweep_mode() == "quick") cases = thinned(cases);
  std::printf("%zu cases\n", cases.size());
  const OneThreadPerCall one;
  const auto failures = check_cases(cases);
  EXPECT_TRUE(failures.empty()) << summary(failures);
}

}  // namespace
}  // namespace attend::test
