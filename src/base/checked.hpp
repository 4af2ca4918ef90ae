// Size arithmetic that cannot wrap: the one place where sizes are multiplied.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace attend {

// The product, or InvalidArgument naming `what` when it does not fit. All factors must be >= 0.
std::int64_t checked_product(const char* what, std::initializer_list<std::int64_t> factors);

// n / by, rounded up; n >= 0.
constexpr std::int64_t divide_up(std::int64_t n, std::int64_t by) {
  return n / by + (n % by != 0 ? 1 : 0);
}

}  // namespace attend
