// Which kernels tests can run.
#include "support/kernels.hpp"

#include <cstdlib>
#include <string_view>

#include "cpu/dispatch.hpp"
#if defined(__x86_64__)
#include "base/cpu.hpp"
#include "support/amx/emulator.hpp"
#endif

namespace attend::test {

#if defined(__x86_64__)
namespace {

bool amx_is_emulated = false;

}  // namespace

void prepare_kernels() {
  const CpuFeatures cpu = cpu_features();
  if (cpu.amx || !cpu.avx512_bf16) return;
  amx_is_emulated = amx::install_emulator();
  const char* wanted = std::getenv("ATTEND_ISA");
  if (amx_is_emulated && wanted != nullptr && std::string_view(wanted) == "amx") use_kernels(kernels_amx());
}

std::vector<const KernelTable*> testable_kernels() {
  std::vector<const KernelTable*> tables = usable_kernels();
  if (amx_is_emulated) tables.push_back(&kernels_amx());
  return tables;
}
#else
void prepare_kernels() {}

std::vector<const KernelTable*> testable_kernels() {
  return usable_kernels();
}
#endif

}  // namespace attend::test
