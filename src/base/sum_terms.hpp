// Sums in double whose bits depend on the number of terms alone. Static: code built for an instruction set includes it
// too, and must not leave a copy that others could be linked to.
#pragma once

#include <cstdint>

namespace attend {

// The sum over j of term(j), in eight lanes that a compiler can keep in vectors; the order depends on n alone.
template <class F>
static double sum_terms(std::int64_t n, const F& term) {
  double lane[8] = {};
  std::int64_t j = 0;
  for (; j + 8 <= n; j += 8) {
    for (std::int64_t k = 0; k < 8; ++k) lane[k] += term(j + k);
  }
  for (; j < n; ++j) lane[j % 8] += term(j);
  return ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
}

}  // namespace attend
