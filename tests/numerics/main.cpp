// Runs the numerics for the instruction set that ATTEND_ISA names; leaves with 77 where this machine lacks it.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "attend/error.hpp"
#include "attend/runtime.hpp"
#include "numerics/peak_memory.hpp"
#include "support/kernels.hpp"

int main(int argc, char** argv) {
  attend::test::prepare_kernels();
  if (argc == 2 && std::string(argv[1]) == attend::test::kPeakMemoryChild) {
    return attend::test::run_peak_memory_child();
  }
  testing::InitGoogleTest(&argc, argv);
  try {
    attend::kernel_name();
  } catch (const attend::InvalidArgument& error) {
    std::printf("this machine cannot run these kernels: %s\n", error.what());
    return 77;
  }
  std::printf("kernels: %s\n", attend::kernel_name());
  return RUN_ALL_TESTS();
}
