// The functions of src/cuda/ptx.cuh that the decoding kernels call, on the CPU. Copies arrive when somebody waits for
// them and not before; until then their place holds garbage.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <type_traits>
#include <utility>
#include <vector>

#include "../block.hpp"
#include "../tensor_map.hpp"

namespace attend::cuda {

using Bf16 = __nv_bfloat16;
using Half = __half;

extern char raw[];

inline std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(static_cast<const char*>(p) - raw);
}

struct BarrierState {
  int arrivals = 0, missing = 0;
  std::int64_t bytes = 0;
  int phase = 0;
  std::vector<std::function<void()>> copies;
};
inline std::map<const void*, BarrierState>& barriers() {
  static std::map<const void*, BarrierState> all;
  return all;
}

struct Barrier {
  std::uint64_t state;

  BarrierState& mine() { return barriers().at(this); }
  void settle() {
    BarrierState& m = mine();
    if (m.missing == 0 && m.bytes == 0) m.missing = m.arrivals, ++m.phase;
  }
  void init(int arrivals) { barriers()[this] = {arrivals, arrivals, 0, 0, {}}; }
  void expect(int bytes) {
    mine().bytes += bytes;
    arrive();
  }
  void arrive() {
    if (--mine().missing < 0) std::abort();
    settle();
  }
  void arrive_when_loaded() { arrive(); }
  void land() {
    for (auto& copy : std::exchange(mine().copies, {})) copy();
    settle();
  }
  void wait(int parity) {
    while (true) {
      if (mine().missing == 0) land();
      if (mine().phase % 2 != parity) return;
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

inline void load_box_with(std::uint64_t, void* to, const CUtensorMap* map, Barrier* full, int x, int y, int z, int w) {
  const auto m = emulated::read_map(*map);
  const auto rows = static_cast<std::int64_t>(m.box[1]), columns = static_cast<std::int64_t>(m.box[0]);
  const std::int64_t bytes = rows * columns * m.bytes;
  std::memset(to, 0xFF, static_cast<std::size_t>(bytes));
  full->mine().copies.push_back([=] {
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < columns; ++c) {
        const bool there = x + c >= 0 && x + c < m.dims[0] && y + r >= 0 && y + r < m.dims[1] && z >= 0 &&
                           z < m.dims[2] && w >= 0 && w < m.dims[3];
        std::uint32_t at = shared_address(to) + static_cast<std::uint32_t>((r * columns + c) * m.bytes);
        at ^= (at >> 7 & 7) << 4;
        if (there)
          std::memcpy(raw + at,
                      m.data + (x + c) * m.bytes + (y + r) * m.strides[0] + z * m.strides[1] + w * m.strides[2],
                      static_cast<std::size_t>(m.bytes));
        else
          std::memset(raw + at, 0, static_cast<std::size_t>(m.bytes));
      }
    full->mine().bytes -= bytes;
  });
}
inline void load_float_later(float* to, const float* from, bool there) {
  *to = there ? *from : 0.0F;  // what it stands beside is waited for
}
inline void store_with(std::uint64_t, float4* to, const float4& x) {
  *to = x;
}
inline void store_with(std::uint64_t, float* to, float x) {
  *to = x;
}

inline std::uint32_t word_at(std::uint32_t address) {
  std::uint32_t word;
  std::memcpy(&word, raw + address, 4);
  return word;
}
inline void load_matrices(std::uint32_t (&r)[4], std::uint32_t address) {
  const std::uint32_t* const rows = emulated::all_lanes(address);
  for (unsigned m = 0; m < 4; ++m) r[m] = word_at(rows[8 * m + emulated::lane() / 4] + emulated::lane() % 4 * 4);
}
inline void load_transposed(std::uint32_t (&r)[4], std::uint32_t address) {
  const std::uint32_t* const rows = emulated::all_lanes(address);
  for (unsigned m = 0; m < 4; ++m) {
    std::uint16_t pair[2];
    for (unsigned n = 0; n < 2; ++n)
      std::memcpy(&pair[n], raw + rows[8 * m + emulated::lane() % 4 * 2 + n] + emulated::lane() / 4 * 2, 2);
    std::memcpy(&r[m], pair, 4);
  }
}
inline std::uint32_t transposed(std::uint32_t pair) {
  const std::uint32_t* const all = emulated::all_lanes(pair);
  const unsigned column = emulated::lane() / 4;
  std::uint32_t result = 0;
  for (unsigned n = 0; n < 2; ++n) {
    const unsigned row = emulated::lane() % 4 * 2 + n;
    result |= (all[row * 4 + column / 2] >> column % 2 * 16 & 0xFFFF) << 16 * n;
  }
  return result;
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
T from_bits(std::uint16_t bits) {
  T x;
  std::memcpy(&x, &bits, 2);
  return x;
}
template <class T>
std::uint32_t pack(float low, float high) {
  T two[2];
  if constexpr (std::is_same_v<T, Half>)
    two[0] = __float2half_rn(low), two[1] = __float2half_rn(high);
  else
    two[0] = __float2bfloat16_rn(low), two[1] = __float2bfloat16_rn(high);
  std::uint32_t pair;
  std::memcpy(&pair, two, 4);
  return pair;
}
inline float low_float(std::uint32_t pair) {
  return __uint_as_float(pair << 16);
}
inline float high_float(std::uint32_t pair) {
  return __uint_as_float(pair & 0xFFFF0000U);
}
inline std::uint32_t subtract_pairs(std::uint32_t a, std::uint32_t b) {
  return pack<Bf16>(low_float(a) - low_float(b), high_float(a) - high_float(b));
}
inline std::uint32_t subtract_halves(std::uint32_t a, std::uint32_t b) {
  const auto half_of = [](std::uint32_t pair, int which) {
    return widen(from_bits<Half>(static_cast<std::uint16_t>(pair >> 16 * which)));
  };
  return pack<Half>(half_of(a, 0) - half_of(b, 0), half_of(a, 1) - half_of(b, 1));
}
inline std::uint32_t mask_and_flip(std::uint32_t x, std::uint32_t mask, std::uint32_t flip) {
  return (x & mask) ^ flip;
}
inline float of_e4m3(unsigned bits) {
  const unsigned e = bits >> 3 & 15, m = bits & 7;
  if (e == 15 && m == 7) return NAN;
  const float x = e == 0 ? std::ldexp(static_cast<float>(m), -9) : std::ldexp(8.0F + static_cast<float>(m), static_cast<int>(e) - 10);
  return bits & 128 ? -x : x;
}
inline std::uint32_t widen_e4m3(std::uint16_t two) {
  return pack<Half>(of_e4m3(two & 255), of_e4m3(two >> 8));
}
inline unsigned to_e4m3(float x) {
  if (std::isnan(x)) return 0x7F;
  unsigned best = 0;
  for (unsigned bits = 0; bits < 127; ++bits) {  // to nearest, of two the even one
    const float d = std::abs(of_e4m3(bits) - std::abs(x)), at = std::abs(of_e4m3(best) - std::abs(x));
    if (d < at || (d == at && bits % 2 == 0)) best = bits;
  }
  return best | (std::signbit(x) ? 128U : 0U);
}
inline std::uint16_t pack_e4m3(float low, float high) {
  return static_cast<std::uint16_t>(to_e4m3(low) | to_e4m3(high) << 8);
}

template <class T>
void multiply(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  struct Given {
    std::uint32_t a[4], b[2];
  };
  const Given* const all = emulated::all_lanes(Given{{a[0], a[1], a[2], a[3]}, {b0, b1}});
  const auto half_of = [](std::uint32_t pair, unsigned which) {
    return double{widen(from_bits<T>(static_cast<std::uint16_t>(pair >> 16 * which)))};
  };
  for (unsigned e = 0; e < 4; ++e) {
    const unsigned row = emulated::lane() / 4, column = emulated::lane() % 4 * 2 + e % 2;
    double sum = d[e];
    for (unsigned k = 0; k < 16; ++k) {
      const unsigned part = k / 8, pair = k % 8 / 2;
      sum += half_of(all[row * 4 + pair].a[part * 2 + e / 2], k % 2) * half_of(all[column * 4 + pair].b[part], k % 2);
    }
    d[e] = static_cast<float>(sum);
  }
}

}  // namespace attend::cuda
