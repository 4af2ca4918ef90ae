// Version, threads and what the machine has.
#include "attend/runtime.hpp"

#include <string>

#include "base/check.hpp"
#include "base/cpu.hpp"
#include "base/threads.hpp"
#include "cpu/dispatch.hpp"

namespace attend {

const char* version() {
  return ATTEND_VERSION;
}

void set_threads(int count) {
  if (count < 1 || count > kMaxThreads)
    fail("set_threads", "count is " + std::to_string(count) + ", expected 1 to " + std::to_string(kMaxThreads));
  set_thread_count(count);
}
int threads() {
  return thread_count();
}

const char* kernel_name() {
  return kernels().name;
}

CpuInfo cpu_info() {
  CpuInfo info{cpu_model(), usable_cpus(), cpu_feature_names(), {}};
  for (const KernelTable* table : usable_kernels()) info.kernels.emplace_back(table->name);
  return info;
}

}  // namespace attend
