// An outside program in C++: causal attention over two tokens, with the value worked out by hand.
#include <array>
#include <cmath>
#include <cstdio>

#include "attend/attend.hpp"

int main() {
  const std::array<float, 2> q{0.5F, 2.0F}, k{1.0F, -0.25F}, v{3.0F, 7.0F};
  std::array<float, 2> out{};
  const attend::Shape shape{1, 1, 2, 1};
  attend::attention(attend::view_of(q.data(), shape), attend::view_of(k.data(), shape),
                    attend::view_of(v.data(), shape), attend::view_of(out.data(), shape), {.mask = attend::causal()});

  const double p = 1 / (1 + std::exp(2.0 * -0.25 - 2.0 * 1.0));  // of key 0 in row 1; the scale is 1/sqrt(1)
  std::printf("attend %s from C++, kernel %s: %g %g\n", attend::version(), attend::kernel_name(),
              static_cast<double>(out[0]), static_cast<double>(out[1]));
  return out[0] == 3.0F && std::abs(static_cast<double>(out[1]) - (p * 3.0 + (1 - p) * 7.0)) < 1e-5 ? 0 : 1;
}
