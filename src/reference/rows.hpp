// The loop over the rows of a shape.
#pragma once

#include <cstdint>

#include "attend/tensor.hpp"
#include "base/threads.hpp"

namespace attend::reference {

// Calls f(b, h, i) for every row that has elements.
template <class F>
void for_each_row(const Shape& shape, const F& f) {
  if (shape[1] == 0 || shape[2] == 0 || shape[3] == 0) return;  // else an empty loop might run 2^62 times
  for (std::int64_t b = 0; b < shape[0]; ++b) {
    for (std::int64_t h = 0; h < shape[1]; ++h) {
      for (std::int64_t i = 0; i < shape[2]; ++i) {
        stop_if_asked();
        f(b, h, i);
      }
    }
  }
}

}  // namespace attend::reference
