// Which kernels run: decided here, once, and nowhere else.
#include "cpu/dispatch.hpp"

#include <atomic>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/check.hpp"
#include "base/cpu.hpp"

namespace attend {
namespace {

std::atomic<const KernelTable*> current = nullptr;

// ATTEND_KERNEL names the one that was built; "": all were.
[[maybe_unused]] constexpr bool built(std::string_view name) {
  constexpr std::string_view kOnly = ATTEND_KERNEL;
  return kOnly.empty() || kOnly == name;
}

const KernelTable& choose() {
  const std::vector<const KernelTable*> usable = usable_kernels();
  if (usable.empty())
    fail("attend",
         "was built for " ATTEND_KERNEL " alone (ATTEND_KERNELS=native), which this processor has not: build it here");
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
  // A table whose kernels were left out is never named: it is not there to be linked.
  if constexpr (built("amx"))
    if (cpu.amx) tables.push_back(&kernels_amx());
  // VDPBF16PS runs at twice the rate of FMA on AMD, and at half of it on Intel.
  if constexpr (built("avx512_bf16"))
    if (cpu.avx512_bf16 && cpu.amd) tables.push_back(&kernels_avx512_bf16());
  if constexpr (built("avx512"))
    if (cpu.avx512) tables.push_back(&kernels_avx512());
  if constexpr (built("avx512_bf16"))
    if (cpu.avx512_bf16 && !cpu.amd) tables.push_back(&kernels_avx512_bf16());
  if constexpr (built("avx2"))
    if (cpu.avx2) tables.push_back(&kernels_avx2());
#elif defined(__aarch64__)
  tables.push_back(&kernels_neon());  // every aarch64 has it
#endif
  if constexpr (built("scalar")) tables.push_back(&kernels_scalar());
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
