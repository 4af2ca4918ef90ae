// The peak-memory test runs in a process of its own, so that nothing before it counts.
#pragma once

namespace attend::test {

inline constexpr const char* kPeakMemoryChild = "--peak-memory-child";

// Prints the KiB that attention forward and backward over 65,536 tokens took beyond their arguments.
int run_peak_memory_child();

}  // namespace attend::test
