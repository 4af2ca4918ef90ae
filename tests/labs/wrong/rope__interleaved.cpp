#include <cmath>

void rope(const float* x, const int* positions, float* y, int B, int H, int L, int D, double theta) {
  for (int r = 0; r < B * H * L; ++r)
    for (int i = 0; i < D / 2; ++i) {
      const double a = positions[r % L] * std::pow(theta, -2.0 * i / D);
      const double u = x[r * D + 2 * i], v = x[r * D + 2 * i + 1];
      y[r * D + 2 * i] = static_cast<float>(u * std::cos(a) - v * std::sin(a));
      y[r * D + 2 * i + 1] = static_cast<float>(u * std::sin(a) + v * std::cos(a));
    }
}
