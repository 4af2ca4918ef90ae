// Four bytes of x, in every lane. Included after integers_avx2.h or integers_avx512.h.
using DotInput = Integers;

inline DotInput dot_input(const std::int8_t* p) {
  int four;
  __builtin_memcpy(&four, p, sizeof four);
  return set_32(four);
}
