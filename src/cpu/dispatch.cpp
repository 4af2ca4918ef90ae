// Which kernels run: decided here, once, and nowhere else.
#include "cpu/dispatch.hpp"

#include <cstdlib>
#include <string>

#include "base/check.hpp"
#include "base/cpu.hpp"

namespace attend {
namespace {

const KernelTable& choose() {
  const std::vector<const KernelTable*> usable = usable_kernels();
  const char* wanted = std::getenv("ATTEND_ISA");
  if (wanted == nullptr || *wanted == '\0') return *usable.front();
#if defined(ATTEND_EMULATED_AMX)  // for tests, which name it; nobody else is offered it
  if (std::string(wanted) == "amx_emulated" && cpu_features().avx512_bf16) return kernels_amx_emulated();
#endif
  std::string names;
  for (const KernelTable* table : usable) {
    if (std::string(wanted) == table->name) return *table;
    names += (names.empty() ? "" : ", ") + std::string(table->name);
  }
  fail("ATTEND_ISA", "is \"" + std::string(wanted) + "\", expected one that runs here: " + names);
}

}  // namespace

std::vector<const KernelTable*> usable_kernels() {
  std::vector<const KernelTable*> tables;
#if defined(__x86_64__)
  const CpuFeatures cpu = cpu_features();
  if (cpu.amx) tables.push_back(&kernels_amx());
  // VDPBF16PS runs at twice the rate of FMA on AMD, and at half of it on Intel.
  if (cpu.avx512_bf16 && cpu.amd) tables.push_back(&kernels_avx512_bf16());
  if (cpu.avx512) tables.push_back(&kernels_avx512());
  if (cpu.avx512_bf16 && !cpu.amd) tables.push_back(&kernels_avx512_bf16());
  if (cpu.avx2) tables.push_back(&kernels_avx2());
#elif defined(__aarch64__)
  tables.push_back(&kernels_neon());  // every aarch64 has it
#endif
  tables.push_back(&kernels_scalar());
  return tables;
}

const KernelTable& kernels() {
  static const KernelTable& chosen = choose();
  return chosen;
}

}  // namespace attend
