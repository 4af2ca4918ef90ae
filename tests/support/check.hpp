// Runs cases through the library and compares them with the truth: what the sweep, the extras and the fuzzer share.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cpu/kernel_table.hpp"
#include "support/compare.hpp"

namespace attend::test {

// The strides of argument number `flavour` of a call.
using StrideRule = std::function<Strides(const Shape& shape, int flavour)>;

// attention() and, when the case asks for it, attention_backward() in the dtype and layout of the case. A write
// outside the elements of an output is added to `failures`.
Computed compute(const Problem& problem, const Case& c, std::vector<std::string>& failures);
Computed compute(const Problem& problem, const Case& c, std::vector<std::string>& failures, const StrideRule& strides);

// The truth against src/reference, to a few roundings of double.
std::vector<std::string> check_truth(const Problem& problem, const Truth& truth);

// ATTEND_SWEEP: "all" for the whole list, "quick" for builds with sanitizers, "" for the cover; where it is not set, ""
// for the kernels that this machine chooses, "quick" for others.
std::string sweep_mode();

// item(n) for n in [0, count) on all CPUs. Items must not throw.
void run_parallel(std::int64_t count, const std::function<void(std::int64_t)>& item);

// Kernels that are checked: with every problem of a list, or with one in kThinned.
struct KernelShare {
  const KernelTable* table = nullptr;
  bool thinned = false;
};
inline constexpr std::size_t kThinned = 11;  // it shares no factor with the counts of the sweep's parameters

// All problems of the list with each of the kernels, in parallel; with `progress` a line now and then. Returns every
// failure, which opens with the kernels' name and that of its case. Problems that the reference can do quickly are also
// used to pin the truth to it.
std::vector<std::string> check_cases(const std::vector<Case>& cases, const std::vector<KernelShare>& shares,
                                     bool progress = false);

// The first failures and their number, for a test's message.
std::string summary(const std::vector<std::string>& failures);

}  // namespace attend::test
