#include <cstdlib>

void softmax(const float*, float*, int, int) {
  std::abort();
}
