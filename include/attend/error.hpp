// The exceptions the library throws: bad arguments, and memory it could not get.
#pragma once

#include <stdexcept>
#include <string>

namespace attend {

// What was wrong with an argument: what was got, what was expected. Thrown before any memory is touched.
class InvalidArgument : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

}  // namespace attend
