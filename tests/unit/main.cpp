// Runs the unit tests with the kernels that ATTEND_ISA names, AMX's in the emulator where the CPU has none.
#include <gtest/gtest.h>

#include "support/kernels.hpp"

int main(int argc, char** argv) {
  attend::test::prepare_kernels();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
