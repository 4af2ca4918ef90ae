// The names of Compute.
#include "attend/llm/compute.hpp"

#include "attend/error.hpp"
#include "io/file_error.hpp"

namespace attend::llm {

const char* name(Compute compute) {
  return compute == Compute::f32 ? "f32" : "file";
}

Compute compute_named(const std::string& text) {
  for (const Compute compute : {Compute::file, Compute::f32})
    if (text == name(compute)) return compute;
  throw InvalidArgument("compute is '" + io::printable(text, 60) +
                        "', expected file (the arithmetic of the file's format) or f32 (weights are dequantised on "
                        "loading)");
}

}  // namespace attend::llm
