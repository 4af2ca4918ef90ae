// The kernels that tests can run: those of this CPU, and AMX's in the emulator where the CPU has no AMX.
#pragma once

#include <string>
#include <vector>

#include "cpu/kernel_table.hpp"

namespace attend::test {

// For main, before anything else: where the CPU lacks AMX but runs the rest of its kernels, installs the emulator, and
// has ATTEND_ISA=amx mean those kernels in it. Where the CPU has AMX nothing is changed.
void prepare_kernels();

// usable_kernels(), and AMX's at the end where prepare_kernels() has installed the emulator.
std::vector<const KernelTable*> testable_kernels();

}  // namespace attend::test
