// Runs a test with the kernels of every instruction set that tests can run.
#pragma once

#include <gtest/gtest.h>

#include "cpu/dispatch.hpp"
#include "support/kernels.hpp"

namespace attend::test {

template <class F>
void on_every_isa(const F& f) {
  const KernelTable& before = kernels();
  for (const KernelTable* table : testable_kernels()) {
    SCOPED_TRACE(table->name);
    use_kernels(*table);
    f();
  }
  use_kernels(before);
}

}  // namespace attend::test
