// What this machine has, which kernels were chosen, how many threads work.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attend/export.h"

namespace attend {

ATTEND_API const char* version();

// Threads that work on one call, the calling one included. Results have the same bits for any number.
// From 1 to 1024. Starts as ATTEND_THREADS if set (InvalidArgument unless it is such a number), else the number of CPUs
// this process may use.
ATTEND_API void set_threads(int count);
ATTEND_API int threads();

// Each thread keeps up to 64 MiB of working memory for its next call, so that a shape seen before allocates nothing.
// This gives the calling thread's back.
ATTEND_API void release_memory();

// Asks the system for large pages under memory just allocated: to fill it then costs a page fault for every 2 MiB
// instead of every 4 KiB, which was an eighth of the time over packed documents. For results in memory of one's own (a
// Tensor does it itself). Below 4 MiB, and where there are no large pages, nothing happens.
ATTEND_API void use_large_pages(void* memory, std::int64_t bytes);

// The instruction set in use: "scalar", "avx2", "avx512", "avx512_bf16", "amx" or "neon". Chosen once, at first use;
// ATTEND_ISA overrides.
ATTEND_API const char* kernel_name();

struct CpuInfo {
  std::string model;
  int cpus = 0;                       // this process may use
  std::vector<std::string> features;  // of the CPU, as far as the kernels care: "avx2", "fma", "f16c", ...
  std::vector<std::string> kernels;   // built in and runnable here, best first
};
ATTEND_API CpuInfo cpu_info();

}  // namespace attend
