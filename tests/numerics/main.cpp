// Runs the numerics for the instruction set that ATTEND_ISA names; leaves with 77 where this machine lacks it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "attend/runtime.hpp"
#include "numerics/peak_memory.hpp"

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == attend::test::kPeakMemoryChild) {
    return attend::test::run_peak_memory_child();
  }
  testing::InitGoogleTest(&argc, argv);
  if (const char* isa = std::getenv("ATTEND_ISA"); isa != nullptr && *isa != '\0') {
    const auto kernels = attend::cpu_info().kernels;
    if (std::find(kernels.begin(), kernels.end(), isa) == kernels.end()) {
      std::printf("this machine cannot run the %s kernels\n", isa);
      return 77;
    }
  }
  std::printf("kernels: %s\n", attend::kernel_name());
  return RUN_ALL_TESTS();
}
