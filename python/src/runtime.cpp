// Version, threads and what the machine has.
#include "bindings.hpp"

namespace attend::python {

void bind_runtime(nb::module_& m) {
  m.def("version", &version, "The version of the engine.\n\n>>> attend.version()");
  m.def("threads", &threads, "How many threads work on one call.\n\n>>> attend.threads()");
  m.def("set_threads", &set_threads, "count"_a,
        "Sets how many threads work on one call; results have the same bits for any number.\n\n"
        ">>> attend.set_threads(4)");
  m.def("kernel_name", &kernel_name,
        "The instruction set in use; ATTEND_ISA overrides the choice.\n\n>>> attend.kernel_name()\n'avx512'");
  m.def(
      "cpu_info",
      [] {
        const CpuInfo info = cpu_info();
        nb::dict result;
        result["model"] = info.model;
        result["cpus"] = info.cpus;
        result["features"] = info.features;
        result["kernels"] = info.kernels;
        return result;
      },
      "What this machine has: model, cpus, features, and the kernels that run here, best first.\n\n"
      ">>> attend.cpu_info()['kernels']");
}

}  // namespace attend::python
