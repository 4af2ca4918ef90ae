// The sweep and the families beyond it: every element of every case within its bounds.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>
#include <tuple>

#include "attend/runtime.hpp"
#include "cpu/dispatch.hpp"
#include "support/check.hpp"
#include "support/kernels.hpp"

namespace attend::test {
namespace {

// The truth takes most of the time, so it is found once for all kernels of this machine, or for those that ATTEND_ISA
// names. Quickly: every eleventh problem. Scalar kernels, the slowest, take so many of them but in the whole sweep.
std::vector<KernelShare> shares() {
  const std::string mode = sweep_mode();
  const char* wanted = std::getenv("ATTEND_ISA");
  const bool all = wanted == nullptr || *wanted == '\0';
  std::vector<KernelShare> shares;
  for (const KernelTable* table : all ? testable_kernels() : std::vector<const KernelTable*>{&kernels()}) {
    const bool scalar = std::string_view(table->name) == "scalar";
    shares.push_back({table, mode == "quick" || (scalar && mode != "all")});
  }
  return shares;
}

std::vector<std::string> failures_of(const std::vector<Case>& cases) {
  std::printf("%zu cases with", cases.size());
  for (const KernelShare& share : shares())
    std::printf(" %s%s", share.table->name, share.thinned ? " (every eleventh problem)" : "");
  std::printf("\n");
  return check_cases(cases, shares(), sweep_mode() == "all");
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
  const OneThreadPerCall one;
  const auto failures = failures_of(to_cases(sweep_mode() == "all" ? whole_sweep() : cover_sweep()));
  EXPECT_TRUE(failures.empty()) << summary(failures);
}

TEST(Extras, EveryElementWithinBounds) {
  const OneThreadPerCall one;
  const auto failures = failures_of(extra_cases());
  EXPECT_TRUE(failures.empty()) << summary(failures);
}

}  // namespace
}  // namespace attend::test
