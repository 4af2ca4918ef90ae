// The text of the InvalidArgument that a call throws, for tests of bad arguments.
#pragma once

#include <string>

#include "attend/error.hpp"

namespace attend::test {

// "" when nothing is thrown; any other exception passes through and fails the test.
template <class F>
std::string error_of(const F& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

}  // namespace attend::test
