// Errors of arguments that come from a file, as errors of that file.
#pragma once

#include <string>
#include <utility>

#include "attend/error.hpp"
#include "io/file_error.hpp"

namespace attend::llm {

// Runs `job`, whose arguments come from a file alone: what the library finds wrong with them is wrong with the file.
template <class Job>
decltype(auto) with_file_errors(const std::string& file, Job&& job) {
  try {
    return std::forward<Job>(job)();
  } catch (const InvalidArgument& error) {
    throw io::FileError(file + ": " + error.what());
  }
}

}  // namespace attend::llm
