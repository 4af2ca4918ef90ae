// Adam, for the small models of the labs.
#include "labs/adam.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace attend::labs {

void adam_step(std::span<Tensor* const> parameters, std::span<Tensor* const> gradients, std::span<Tensor> first,
               std::span<Tensor> second, std::int64_t step, double rate) {
  constexpr double kBeta1 = 0.9, kBeta2 = 0.98, kEps = 1e-9;
  double square = 0;
  for (const Tensor* g : gradients)
    for (std::int64_t n = 0; n < g->size(); ++n) {
      const auto x = static_cast<double>(g->data<float>()[n]);
      square += x * x;
    }
  const auto clip = static_cast<float>(1 / std::max(1.0, std::sqrt(square)));
  const auto b1 = static_cast<float>(kBeta1), b2 = static_cast<float>(kBeta2);
  const auto c1 = static_cast<float>(rate / (1 - std::pow(kBeta1, static_cast<double>(step))));
  const auto c2 = static_cast<float>(1 / (1 - std::pow(kBeta2, static_cast<double>(step))));
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    float* w = parameters[p]->data<float>();
    const float* g = gradients[p]->data<float>();
    float *m = first[p].data<float>(), *v = second[p].data<float>();
    for (std::int64_t n = 0; n < parameters[p]->size(); ++n) {
      const float x = g[n] * clip;
      m[n] = b1 * m[n] + (1 - b1) * x;
      v[n] = b2 * v[n] + (1 - b2) * x * x;
      w[n] -= c1 * m[n] / (std::sqrt(v[n] * c2) + static_cast<float>(kEps));
    }
  }
}

}  // namespace attend::labs
