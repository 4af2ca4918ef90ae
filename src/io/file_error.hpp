// A file that cannot be used.
#pragma once

#include <stdexcept>

namespace attend::io {

// Which file, what is wrong with it (which field, which value), what was expected. For writing: at what step, and what
// the system said.
class FileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace attend::io
