void softmax(const float*, float*, int, int) {
  int* volatile nowhere = nullptr;
  *nowhere = 1;
}
