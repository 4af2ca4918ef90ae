// One attention problem from bytes, computed by every instruction set that runs here: each must keep its bounds against
// the truth, which is the reference's, and give the same bits again with other threads.
#include <array>
#include <cstdint>
#include <cstring>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "attend/runtime.hpp"
#include "cpu/dispatch.hpp"
#include "draw_attention.hpp"
#include "seeded.hpp"
#include "support/check.hpp"
#include "support/kernels.hpp"
#include "without_luck.hpp"

namespace attend::test {
namespace {

// Sizes on both sides of what a tile, a vector and a block of rows hold, and those that models have.
Case draw_sizes(FuzzedDataProvider& bytes) {
  Case c = draw_case(bytes, {.groups = 4, .queries = 70, .keys = 200, .dim = 72});
  constexpr std::array<int64_t, 5> kDims = {16, 32, 64, 96, 128};
  if (bytes.ConsumeBool()) c.D = bytes.PickValueInArray(kDims);
  if (bytes.ConsumeBool()) c.E = bytes.PickValueInArray(kDims);
  // The reference takes its time: what is large has one batch and few heads, and then fewer queries.
  const auto work = [&] { return c.B * c.H * c.M * c.N * (c.D + c.E); };
  constexpr int64_t kMostWork = 1'000'000;
  if (work() > kMostWork) c.B = 1;
  if (work() > kMostWork) c.H /= std::exchange(c.Hk, 1);
  while (work() > kMostWork) c.M /= 2;
  constexpr std::array<DType, 4> kDTypes = {DType::bf16, DType::f32, DType::f16, DType::bf16};  // bf16 has most kernels
  c.dtype = bytes.PickValueInArray(kDTypes);
  c.layout = static_cast<Layout>(number(bytes, 0, 2));
  return c;
}

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0);
}
bool same_bits(const Computed& a, const Computed& b) {
  return same_bits(a.out, b.out) && same_bits(a.lse, b.lse) && same_bits(a.dq, b.dq) && same_bits(a.dk, b.dk) &&
         same_bits(a.dv, b.dv) && same_bits(a.dbias, b.dbias) && same_bits(a.dsinks, b.dsinks);
}

std::vector<std::string> check_kernels(const Problem& problem, const Mask& mask, const Case& c, const Truth& truth,
                                       const Results& naive, int other_threads) {
  std::vector<std::string> failures;
  set_threads(1);
  const Computed computed = compute(problem, c, failures);
  const auto beyond = compare_without_luck(problem, mask, truth, naive, computed);
  failures.insert(failures.end(), beyond.begin(), beyond.end());
  set_threads(other_threads);
  if (!same_bits(computed, compute(problem, c, failures)))
    failures.push_back("other bits with " + std::to_string(other_threads) + " threads than with one");
  return failures;
}

void run(FuzzedDataProvider& bytes) {
  const Case c = draw_sizes(bytes);
  const int other_threads = static_cast<int>(number(bytes, 1, 3));
  std::vector<std::vector<std::uint8_t>> memory;
  Problem problem(c);
  const Mask mask = draw_mask(bytes, c, memory);
  problem.set_mask(mask);
  const Truth truth = true_attention(problem);
  if (const auto failures = check_truth(problem, truth); !failures.empty())
    stop("the truth, " + c.name() + ": " + summary(failures));
  const Results naive = naive_attention(problem, c.dtype);
  for (const KernelTable* table : testable_kernels()) {
    use_kernels(*table);
    if (const auto failures = check_kernels(problem, mask, c, truth, naive, other_threads); !failures.empty())
      stop(std::string(table->name) + ", " + c.name() + ": " + summary(failures));
  }
}

}  // namespace
}  // namespace attend::test

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  attend::test::prepare_kernels();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider bytes(data, size);
  try {
    attend::test::run(bytes);
  } catch (const std::exception& error) {
    attend::test::stop(std::string("threw ") + error.what());
  }
  return 0;
}
