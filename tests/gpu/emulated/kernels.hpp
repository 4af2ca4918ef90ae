// The kernels by their names, compiled for the CPU.
#pragma once

#include <map>
#include <string>

namespace emulated {

const std::map<std::string, void (*)(const void*)>& kernels();

}  // namespace emulated
