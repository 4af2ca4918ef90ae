// As many bytes as a vector of floats has. Included after the simd header.
using Packed [[gnu::vector_size(4 * kLanes)]] = std::uint32_t;

inline Packed load_packed(const std::uint8_t* p) {
  Packed x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
inline void store_packed(std::uint8_t* p, Packed x) {
  __builtin_memcpy(p, &x, sizeof x);
}
