// The choice of kernels.
#pragma once

#include <vector>

#include "cpu/kernel_table.hpp"

namespace attend {

// Chosen once, at first use: the best set this CPU runs, or ATTEND_ISA. Throws InvalidArgument when ATTEND_ISA names a
// set that is unknown or that this CPU lacks.
const KernelTable& kernels();

std::vector<const KernelTable*> usable_kernels();  // best first

// For tests, which run several sets in one process: these from now on, whatever the CPU has and ATTEND_ISA says. No
// call may be under way, and what other kernels have packed (Weight, PagedKvCache) is not theirs to read.
void use_kernels(const KernelTable& table);

}  // namespace attend
