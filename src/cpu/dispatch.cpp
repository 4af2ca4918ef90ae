// Which kernels run: decided here, once, and nowhere else.
#include "cpu/dispatch.hpp"

#include <atomic>
#include <cstdlib>
#include <string>

#include "base/check.hpp"
#include "base/cpu.hpp"

namespace attend {
namespace {

std::atomic<const KernelTable*> current = nullptr;

const KernelTable& choose() {
  const std::vector<const KernelTable*> usable = usable_kernels();
  const char* wanted = std::getenv("ATTEND_ISA");
  if (wanted == nullptr || *wanted == '\0') return *usable.front();
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
  const KernelTable* table = current.load(std::memory_order_acquire);
  if (table == nullptr) {
    table = &choose();  // the same one for every thread that is here at once
    current.store(table, std::memory_order_release);
  }
  return *table;
}

void use_kernels(const KernelTable& table) {
  current.store(&table, std::memory_order_release);
}

}  // namespace attend
