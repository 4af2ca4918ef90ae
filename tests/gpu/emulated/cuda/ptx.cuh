// The functions of src/cuda/ptx.cuh that the emulated kernels call, on the CPU. Copies arrive when somebody waits for
// them and not before; until then their place holds NaN.
#pragma once

#include <type_traits>
#include <utility>

#include "../tensor_map.hpp"
#include "../threads.hpp"

namespace attend::cuda {

using Bf16 = __nv_bfloat16;
using Half = __half;

constexpr int kWarpgroup = 128;

extern char raw[];

inline std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(static_cast<const char*>(p) - raw);
}

struct Barrier {
  std::uint64_t state;

  emulated::SharedBarrier& mine() { return emulated::barriers().at(this); }
  void init(int arrivals) { emulated::barriers()[this] = {arrivals, arrivals}; }
  void settle() {
    emulated::SharedBarrier& m = mine();
    if (m.missing == 0 && m.bytes == 0 && m.copies.empty()) m.missing = m.arrivals, ++m.phase, emulated::move();
  }
  void arrive() {
    if (--mine().missing < 0) emulated::stop("more arrivals than a barrier counts");
    settle();
  }
  void expect(int bytes) {
    mine().bytes += bytes;
    arrive();
  }
  void arrive_when_loaded() {
    for (const emulated::Copy& copy : std::exchange(emulated::copies().open, {})) mine().copies.push_back(copy);
    arrive();
  }
  void wait(int parity) {
    emulated::linger();
    while (true) {
      emulated::SharedBarrier& m = mine();
      if (m.missing == 0) {
        emulated::land(m.copies);
        m.bytes -= std::exchange(m.asked, 0);
        settle();
      }
      if (m.phase % 2 != parity) return;
      emulated::yield();
    }
  }
};

inline void fence_barrier_init() {}
inline void fence_async() {}
inline void prefetch_map(const CUtensorMap*) {}
inline std::uint64_t evict_first() {
  return 0;
}
inline std::uint64_t evict_last() {
  return 0;
}
inline std::uint64_t evict_normal() {
  return 0;
}
inline void let_next_kernel_begin() {}
inline void wait_for_kernel() {}

inline void sync_threads(int id, int threads) {
  emulated::meet(id, threads, true);
}
inline void arrive_threads(int id, int threads) {
  emulated::meet(id, threads, false);
}

// A box of the copy engine: rows of 128 bytes, their sixteens swizzled; zeros where nothing is.
inline void load_box_with(std::uint64_t, void* to, const CUtensorMap* map, Barrier* full, int x, int y, int z, int w) {
  const emulated::TensorMap m = emulated::read_map(*map);
  const std::int64_t columns = 16 / m.bytes;
  for (std::int64_t r = 0; r < m.box[1]; ++r)
    for (std::int64_t c = 0; c < m.box[0]; c += columns) {
      const bool there =
          x + c >= 0 && y + r >= 0 && y + r < m.dims[1] && z >= 0 && z < m.dims[2] && w >= 0 && w < m.dims[3];
      const std::int64_t count = there ? std::clamp<std::int64_t>(m.dims[0] - x - c, 0, columns) : 0;
      const auto at = shared_address(to) + static_cast<std::uint32_t>((r * m.box[0] + c) * m.bytes);
      const std::int64_t from = (x + c) * m.bytes + (y + r) * m.strides[0] + z * m.strides[1] + w * m.strides[2];
      emulated::ask(
          {at ^ (at >> 7 & 7) << 4, count > 0 ? m.data + from : nullptr, 16, static_cast<int>(count * m.bytes)},
          full->mine().copies);
    }
  full->mine().asked += std::int64_t{m.box[1]} * m.box[0] * m.bytes;
}
inline void load_float_later(float* to, const float* from, bool there) {
  emulated::ask({shared_address(to), from, 4, there ? 4 : 0}, emulated::copies().open);
}
inline void store_with(std::uint64_t, float4* to, const float4& x) {
  *to = x;
}
inline void store_with(std::uint64_t, float* to, float x) {
  *to = x;
}

inline void copy_sixteen_if(bool there, std::uint32_t to, const void* from) {
  if (reinterpret_cast<std::uintptr_t>(from) % 16 != 0) emulated::stop("a copy from a place that is not aligned");
  emulated::ask({to, from, 16, there ? 16 : 0}, emulated::copies().open);
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
  for (; groups.size() > kPending; groups.erase(groups.begin())) emulated::land(groups.front());
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

inline std::uint32_t transposed(std::uint32_t pair) {
  std::uint32_t mine[2] = {pair, 0};
  emulated::meet_warp(mine, [](void** all) {
    const auto number = [&](int r, int c) {
      return static_cast<const std::uint32_t*>(all[r * 4 + c / 2])[0] >> c % 2 * 16 & 0xFFFF;
    };
    for (int n = 0; n < 32; ++n) {
      const int c = n / 4, r = n % 4 * 2;
      static_cast<std::uint32_t*>(all[n])[1] = number(r, c) | number(r + 1, c) << 16;
    }
  });
  return mine[1];
}

inline float exp2_fast(float x) {
  return std::exp2(x);
}
inline float smaller_or_nan(float x, float y) {
  return x > y ? y : x;
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

inline float low_float(std::uint32_t pair) {
  return half_of<Bf16>(pair, 0);
}
inline float high_float(std::uint32_t pair) {
  return half_of<Bf16>(pair, 1);
}
template <class T>
std::uint32_t difference(std::uint32_t a, std::uint32_t b) {
  return pack<T>(half_of<T>(a, 0) - half_of<T>(b, 0), half_of<T>(a, 1) - half_of<T>(b, 1));
}
inline std::uint32_t subtract_halves(std::uint32_t a, std::uint32_t b) {
  return difference<Half>(a, b);
}
inline std::uint32_t mask_and_flip(std::uint32_t x, std::uint32_t mask, std::uint32_t flip) {
  return (x & mask) ^ flip;
}
// Those of e4m3 that are not negative, by their bits.
inline const std::vector<float>& e4m3_numbers() {
  static const std::vector<float> all = [] {
    std::vector<float> numbers;
    for (int e = 0; e < 16; ++e)
      for (int m = 0; m < 8; ++m)
        numbers.push_back(e == 0 ? std::ldexp(static_cast<float>(m), -9)
                                 : std::ldexp(8.0F + static_cast<float>(m), e - 10));
    numbers.back() = NAN;
    return numbers;
  }();
  return all;
}
inline float of_e4m3(unsigned bits) {
  const float x = e4m3_numbers()[bits & 127];
  return bits & 128 ? -x : x;
}
inline std::uint32_t widen_e4m3(std::uint16_t two) {
  return pack<Half>(of_e4m3(two & 255), of_e4m3(two >> 8));
}
inline unsigned to_e4m3(float x) {
  if (std::isnan(x)) return 0x7F;
  const float* const all = e4m3_numbers().data();
  const float size = std::min(std::abs(x), all[126]);
  auto bits = static_cast<unsigned>(std::lower_bound(all, all + 126, size) - all);
  if (bits > 0) {  // to nearest, of two the even one
    const float below = size - all[bits - 1], above = all[bits] - size;
    if (below < above || (below == above && bits % 2 == 1)) --bits;
  }
  return bits | (std::signbit(x) ? 128U : 0U);
}
inline std::uint16_t pack_e4m3(float low, float high) {
  return static_cast<std::uint16_t>(to_e4m3(low) | to_e4m3(high) << 8);
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
