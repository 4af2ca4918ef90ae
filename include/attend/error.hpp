// The exceptions the libraries throw: bad arguments, and files that cannot be used.
#pragma once

#include <stdexcept>
#include <string>

#include "attend/export.h"

namespace attend {

// What was wrong with an argument: what was got, what was expected. Thrown before any memory is touched.
class ATTEND_API InvalidArgument : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

// Which file, what is wrong with it, what was expected: libattend_llm throws it, for models and their parts.
class ATTEND_API FileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace attend
