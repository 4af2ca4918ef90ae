// `attend cpu`: what this machine has, and which kernel is chosen.
#include <fmt/format.h>

#include <string>
#include <string_view>

#include "attend/runtime.hpp"
#include "command.hpp"
#include "io/environment.hpp"

namespace attend::cli {
namespace {

std::string why_kernel() {
  const std::string_view isa = io::environment("ATTEND_ISA");
  return isa.empty() ? "the best that runs here" : fmt::format("set by ATTEND_ISA={}", isa);
}

std::string why_threads() {
  return io::environment("ATTEND_THREADS").empty() ? "one for each usable CPU" : "set by ATTEND_THREADS";
}

void line(const char* label, const std::string& text) {
  fmt::print("{:<10}{}\n", label, text);
}

int run_cpu() {
  const CpuInfo info = cpu_info();
  line("model", info.model.empty() ? "unknown" : info.model);
  line("CPUs", fmt::format("{} usable by this process", info.cpus));
  line("features",
       info.features.empty() ? "none that the kernels use" : fmt::format("{}", fmt::join(info.features, " ")));
  line("kernels", fmt::format("{} (built in and runnable here, best first)", fmt::join(info.kernels, ", ")));

  line("chosen", fmt::format("{} ({})", kernel_name(), why_kernel()));
  line("threads", fmt::format("{} ({})", threads(), why_threads()));
  return kSuccess;
}

}  // namespace

Command add_cpu(Program& program) {
  const Subcommand app = program.add_subcommand("cpu", "Say what this machine has and which kernel is chosen");
  app.footer(
      "Examples:\n"
      "  attend cpu\n"
      "  ATTEND_ISA=avx2 attend cpu      check what an override does; the same works for every command");
  return {app, run_cpu};
}

}  // namespace attend::cli
