// Asks the CPU and the operating system what there is.
#include "base/cpu.hpp"

#include <sched.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <thread>

namespace attend {

#if defined(__x86_64__)
namespace {

// AMX needs the CPU's word, the system's that it saves tiles, and its leave for this process to use them.
bool has_amx_bf16() {
  std::uint32_t a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & (1U << 27))) return false;  // no XGETBV
  constexpr std::uint32_t kBf16 = 1U << 22, kTile = 1U << 24;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kBf16) == 0 || (d & kTile) == 0) return false;
  std::uint32_t low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  constexpr std::uint32_t kTileState = 3U << 17;
  if ((low & kTileState) != kTileState) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace
#endif

CpuFeatures cpu_features() {
  CpuFeatures f;
#if defined(__x86_64__)
  // __builtin_cpu_supports checks XGETBV too: a set the system does not save is not reported.
  __builtin_cpu_init();
  f.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  f.avx512 = f.avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  // VNNI, products of bytes, came before BF16 in every CPU there is.
  f.avx512_bf16 = f.avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
  f.amx = f.avx512_bf16 && has_amx_bf16();
  f.amd = __builtin_cpu_is("amd");
#endif
  return f;
}

std::vector<std::string> cpu_feature_names() {
  // The kernel's own list names what is usable; the order here is the order of interest.
  static constexpr const char* kNames[] = {"sse2",        "avx",         "fma",      "f16c",     "avx2",
                                           "avx512f",     "avx512bw",    "avx512dq", "avx512vl", "avx512_bf16",
                                           "avx512_fp16", "avx512_vnni", "amx_tile", "amx_bf16", "amx_int8",
                                           "asimd",       "bf16",        "i8mm",     "sve"};
  std::ifstream file("/proc/cpuinfo");
  std::vector<std::string> found;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("flags") && !line.starts_with("Features")) continue;
    std::istringstream words(line);
    const std::set<std::string> flags{std::istream_iterator<std::string>(words), {}};
    for (const char* name : kNames)
      if (flags.contains(name)) found.emplace_back(name);
    break;
  }
  return found;
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name") || line.starts_with("Model"))
      if (const auto at = line.find(": "); at != std::string::npos) return line.substr(at + 2);
  return "unknown";
}

int usable_cpus() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace attend
