// The same cases on every run, unless RC_PARAMS asks for others (RC_PARAMS="seed=7 max_success=20000").
#include <gtest/gtest.h>

#include <cstdlib>

#include "support/kernels.hpp"

int main(int argc, char** argv) {
  attend::test::prepare_kernels();
  setenv("RC_PARAMS", "seed=2026 max_success=400", 0);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
