#include <cmath>

void softmax(const float* x, float* y, int rows, int cols) {
  for (int r = 0; r < rows; ++r) {
    float sum = 0;
    for (int c = 0; c < cols; ++c) sum += y[r * cols + c] = std::exp(x[r * cols + c]);
    for (int c = 0; c < cols; ++c) y[r * cols + c] = sum == 0 ? 0 : y[r * cols + c] / sum;
  }
}
