// 65,536 tokens, forward and backward, in less than 64 MiB beyond inputs and outputs.
#include "numerics/peak_memory.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>

#include "attend/attention.hpp"
#include "attend/runtime.hpp"
#include "support/check.hpp"
#include "support/problem.hpp"

namespace attend::test {
namespace {

long peak_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::atol(line.c_str() + std::strlen("VmHWM:"));
  }
  return -1;
}

Tensor touched(const Shape& shape, std::uint64_t seed) {  // values in every page
  Tensor tensor(DType::f32, shape);
  float* data = tensor.data<float>();
  for (std::int64_t n = 0; n < tensor.size(); ++n) data[n] = grid_normal(seed, static_cast<std::uint64_t>(n % 4096));
  return tensor;
}

}  // namespace

int run_peak_memory_child() {
  const Shape shape = {1, 1, 65536, 64};
  const Shape column = {1, 1, 65536, 1};
  const Tensor q = touched(shape, 1), k = touched(shape, 2), v = touched(shape, 3), dout = touched(shape, 4);
  Tensor out = touched(shape, 5), dq = touched(shape, 6), dk = touched(shape, 7), dv = touched(shape, 8);
  Tensor lse = touched(column, 9);
  const AttentionOptions options = {.mask = causal()};
  const long before = peak_kib();
  attention(q, k, v, out, options, {.lse = lse.view(), .weights = {}});
  attention_backward(dout, q, k, v, out, lse, {dq, dk, dv, {}, {}}, options);
  const long after = peak_kib();
  if (before < 0 || after < before) return 1;
  std::printf("peak %ld\n", after - before);
  return 0;
}

namespace {

TEST(PeakMemory, LinearAt65536Tokens) {
  const auto kernels = cpu_info().kernels;
  if (kernels.empty() || kernels.front() != kernel_name()) GTEST_SKIP() << "only with the best kernels: it is long";
  if (sweep_mode() == "quick") GTEST_SKIP() << "sanitizers have memory of their own";

  if (access("/proc/self/status", R_OK) != 0) GTEST_SKIP() << "/proc is not mounted: nothing tells the peak";

  char self[4096] = {};
  ASSERT_GT(readlink("/proc/self/exe", self, sizeof self - 1), 0);
  const std::string command = std::string(self) + " " + kPeakMemoryChild;
  const auto close = [](std::FILE* pipe) { pclose(pipe); };
  const std::unique_ptr<std::FILE, decltype(close)> pipe(popen(command.c_str(), "r"), close);
  ASSERT_NE(pipe, nullptr);
  long kib = -1;
  ASSERT_EQ(std::fscanf(pipe.get(), "peak %ld", &kib), 1) << "the child failed";
  std::printf("peak beyond the arguments: %.1f MiB\n", static_cast<double>(kib) / 1024);
  EXPECT_LT(kib, 64 * 1024);
}

}  // namespace
}  // namespace attend::test
