// The functions of src/cuda/ptx.cuh that the plain kernels call, on the CPU. Copies arrive when their thread waits for
// them and not before; until then their place holds NaN.
#pragma once

#include <type_traits>
#include <utility>

#include "../threads.hpp"

namespace attend::cuda {

using Bf16 = __nv_bfloat16;
using Half = __half;

constexpr int kWarpgroup = 128;

extern char raw[];

inline std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(static_cast<const char*>(p) - raw);
}
inline void sync_threads(int id, int threads) {
  emulated::meet(id, threads, true);
}
inline void arrive_threads(int id, int threads) {
  emulated::meet(id, threads, false);
}
inline void wait_for_kernel() {}

inline void copy_sixteen_if(bool there, std::uint32_t to, const void* from) {
  emulated::check_shared(to, 16);
  if (reinterpret_cast<std::uintptr_t>(from) % 16 != 0) std::abort();
  std::memset(raw + to, 0xFF, 16);
  emulated::copies().open.push_back({to, there ? from : nullptr});
}
inline void copy_sixteen(std::uint32_t to, const void* from) {
  copy_sixteen_if(true, to, from);
}
inline void commit_copies() {
  emulated::Copies& mine = emulated::copies();
  mine.groups.push_back(std::exchange(mine.open, {}));
}
template <int kPending = 0>
inline void wait_copies() {
  emulated::linger();
  auto& groups = emulated::copies().groups;
  for (; groups.size() > kPending; groups.erase(groups.begin()))
    for (const emulated::Copy& copy : groups.front()) {
      std::memset(raw + copy.to, 0, 16);
      if (copy.from != nullptr) std::memcpy(raw + copy.to, copy.from, 16);
    }
}
inline void store_shared(std::uint32_t to, std::uint32_t x) {
  emulated::check_shared(to, 4);
  std::memcpy(raw + to, &x, 4);
}
inline void store_shared(std::uint32_t to, const uint4& x) {
  emulated::check_shared(to, 16);
  std::memcpy(raw + to, &x, 16);
}
inline uint4 load_shared(std::uint32_t from) {
  emulated::check_shared(from, 16);
  uint4 x;
  std::memcpy(&x, raw + from, 16);
  return x;
}

struct MatrixRow {
  std::uint32_t address;
  std::uint32_t* got;
};
// Four 8x8 matrices: lanes 8m to 8m + 7 give the rows of the m-th; lane n gets two of row n / 4, or of that column.
template <bool kTransposed>
void load_four(void** all) {
  for (int m = 0; m < 4; ++m) {
    std::uint16_t x[8][8];
    for (int r = 0; r < 8; ++r) {
      const std::uint32_t at = static_cast<const MatrixRow*>(all[8 * m + r])->address;
      emulated::check_shared(at, 16);
      std::memcpy(x[r], raw + at, 16);
    }
    for (int n = 0; n < 32; ++n) {
      const int r = n / 4, c = n % 4 * 2;
      const std::uint32_t low = kTransposed ? x[c][r] : x[r][c], high = kTransposed ? x[c + 1][r] : x[r][c + 1];
      static_cast<const MatrixRow*>(all[n])->got[m] = low | high << 16;
    }
  }
}
inline void load_matrices(std::uint32_t (&r)[4], std::uint32_t address) {
  MatrixRow mine{address, r};
  emulated::meet_warp(&mine, load_four<false>);
}
inline void load_transposed(std::uint32_t (&r)[4], std::uint32_t address) {
  MatrixRow mine{address, r};
  emulated::meet_warp(&mine, load_four<true>);
}

inline float exp2_fast(float x) {
  return std::exp2(x);
}
inline float inverse_fast(float x) {
  return 1.0F / x;
}
inline float widen(Bf16 x) {
  return __bfloat162float(x);
}
inline float widen(Half x) {
  return __half2float(x);
}
template <class T>
std::uint32_t bits_of(float x) {
  T rounded;
  if constexpr (std::is_same_v<T, Half>)
    rounded = __float2half_rn(x);
  else
    rounded = __float2bfloat16_rn(x);
  std::uint16_t bits;
  std::memcpy(&bits, &rounded, 2);
  return bits;
}
template <class T>
std::uint32_t pack(float low, float high) {
  return bits_of<T>(low) | bits_of<T>(high) << 16;
}
template <class T>
float half_of(std::uint32_t pair, int which) {
  const auto bits = static_cast<std::uint16_t>(pair >> 16 * which);
  T x;
  std::memcpy(&x, &bits, 2);
  return widen(x);
}

struct ProductPart {
  float* d;
  const std::uint32_t* a;
  std::uint32_t b0, b1;
};
// m16n8k16: lane n has of A rows n / 4 and 8 on, columns 2 (n % 4), the next, and these 8 on; of B that column, those
// rows.
template <class T>
void multiply_all(void** all) {
  float a[16][16], b[16][8], d[16][8] = {};
  for (int n = 0; n < 32; ++n) {
    const auto& part = *static_cast<const ProductPart*>(all[n]);
    const int r = n / 4, c = n % 4 * 2;
    for (int e = 0; e < 2; ++e) {
      a[r][c + e] = half_of<T>(part.a[0], e), a[r + 8][c + e] = half_of<T>(part.a[1], e);
      a[r][c + 8 + e] = half_of<T>(part.a[2], e), a[r + 8][c + 8 + e] = half_of<T>(part.a[3], e);
      b[c + e][r] = half_of<T>(part.b0, e), b[c + 8 + e][r] = half_of<T>(part.b1, e);
    }
  }
  for (int i = 0; i < 16; ++i)
    for (int k = 0; k < 16; ++k)
      for (int j = 0; j < 8; ++j) d[i][j] += a[i][k] * b[k][j];
  for (int n = 0; n < 32; ++n) {
    float* const to = static_cast<const ProductPart*>(all[n])->d;
    const int r = n / 4, c = n % 4 * 2;
    to[0] += d[r][c], to[1] += d[r][c + 1], to[2] += d[r + 8][c], to[3] += d[r + 8][c + 1];
  }
}
template <class T>
void multiply(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  ProductPart mine{d, a, b0, b1};
  emulated::meet_warp(&mine, multiply_all<T>);
}

}  // namespace attend::cuda
