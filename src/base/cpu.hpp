// What the CPU has, as far as the kernels care.
#pragma once

#include <string>
#include <vector>

namespace attend {

struct CpuFeatures {
  bool avx2 = false;         // with FMA and F16C, and the operating system saves the registers
  bool avx512 = false;       // F, BW, DQ and VL, likewise
  bool avx512_bf16 = false;  // that, BF16 and VNNI
  bool amx = false;          // that and AMX tiles of bf16, with the system's leave
  bool amd = false;
};
CpuFeatures cpu_features();

std::string cpu_model();
std::vector<std::string> cpu_feature_names();
int usable_cpus();  // the CPUs this process may run on

void cpu_relax();  // inside a spin

}  // namespace attend
