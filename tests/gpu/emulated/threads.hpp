// The threads of a block on the CPU: each is a fiber, and they meet where the GPU's would. What CUDA's compiler knows
// by itself is named here; the instructions of src/cuda/ptx.cuh are in cuda/ptx.cuh beside this file.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <vector_functions.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__
#undef __noinline__
#define __noinline__ static

namespace emulated {

// The most shared memory that a block has.
constexpr int kSharedBytes = 227 * 1024;

// Shared memory that a copy is on its way to.
struct Copy {
  std::uint32_t to;
  const void* from;
  int bytes, there;  // zeros behind those that are there
};
// Of a thread: what it has committed, group by group, and what it has not.
struct Copies {
  std::vector<std::vector<Copy>> groups;
  std::vector<Copy> open;
};

// A barrier in shared memory: copies that it counts arrive when somebody waits for it.
struct SharedBarrier {
  int arrivals = 0, missing = 0, phase = 0;
  std::int64_t bytes = 0, asked = 0;  // expected, and asked for of the copy engine
  std::vector<Copy> copies;
};

extern uint3 thread, block, threads, blocks;
Copies& copies();                                      // of this thread
std::map<const void*, SharedBarrier>& barriers();      // of the block, by their places
void ask(const Copy& copy, std::vector<Copy>& under);  // until it lands its place holds NaN
void land(std::vector<Copy>& under);
// Lets other threads run: once, or for a while.
void yield();
void linger();
// Something has happened that others may wait for.
void move();
[[noreturn]] void stop(const char* what);

// Runs `body` for every thread of every block, warps and blocks in no order.
void run(unsigned grid, unsigned block_threads, int shared_bytes, void (*body)(const void*), const void* args);
// Stops the program where `bytes` at a place lie outside of the block's shared memory.
void check_shared(std::uint32_t at, int bytes);
// `all` of a warp give `mine`; the last of them to come runs `f`.
void meet_warp(void* mine, void (*f)(void** all));
// A barrier of some threads: wait for all of them, or only be counted.
void meet(int id, int count, bool wait);
// Whether any, or all, of the block's threads say so.
bool vote(bool mine, bool any);

}  // namespace emulated

#define threadIdx emulated::thread
#define blockIdx emulated::block
#define blockDim emulated::threads
#define gridDim emulated::blocks

inline void __syncthreads() {
  emulated::meet(0, 0, true);
}
inline void __syncwarp() {
  emulated::meet_warp(nullptr, [](void**) {});
}
inline int __syncthreads_or(int x) {
  return emulated::vote(x != 0, true);
}
inline int __syncthreads_and(int x) {
  return emulated::vote(x != 0, false);
}
template <class T>
T shuffled(T x, unsigned from) {
  struct Given {
    T x, got;
    unsigned from;
  } mine{x, x, from};
  emulated::meet_warp(&mine, [](void** all) {
    for (int n = 0; n < 32; ++n) {
      auto* const given = static_cast<Given*>(all[n]);
      given->got = static_cast<const Given*>(all[given->from])->x;
    }
  });
  return mine.got;
}
template <class T>
T __shfl_sync(unsigned, T x, int from) {
  return shuffled(x, static_cast<unsigned>(from) % 32);
}
template <class T>
T __shfl_xor_sync(unsigned, T x, int with) {
  return shuffled(x, (threadIdx.x % 32) ^ static_cast<unsigned>(with));
}
template <class T>
T __shfl_up_sync(unsigned, T x, int by) {
  const unsigned lane = threadIdx.x % 32, n = static_cast<unsigned>(by);
  return shuffled(x, lane >= n ? lane - n : lane);
}
inline unsigned __ballot_sync(unsigned, bool x) {
  unsigned mine = x;
  emulated::meet_warp(&mine, [](void** all) {
    unsigned bits = 0;
    for (int n = 0; n < 32; ++n) bits |= *static_cast<const unsigned*>(all[n]) << n;
    for (int n = 0; n < 32; ++n) *static_cast<unsigned*>(all[n]) = bits;
  });
  return mine;
}
inline bool __any_sync(unsigned mask, bool x) {
  return __ballot_sync(mask, x) != 0;
}
inline bool __all_sync(unsigned mask, bool x) {
  return __ballot_sync(mask, x) == ~0U;
}
inline int __popc(unsigned x) {
  return std::popcount(x);
}
inline int __clz(int x) {
  return std::countl_zero(static_cast<unsigned>(x));
}
inline unsigned atomicOr(unsigned* to, unsigned x) {
  return std::exchange(*to, *to | x);
}
[[noreturn]] inline void __trap() {
  emulated::stop("trap");
}
template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcg(const T* p) {
  return *p;
}
inline int __ffs(int x) {
  return __builtin_ffs(x);
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned which) {
  const std::uint64_t both = std::uint64_t{b} << 32 | a;
  unsigned result = 0;
  for (unsigned n = 0; n < 4; ++n) result |= static_cast<unsigned>(both >> (which >> 4 * n & 7) * 8 & 255) << 8 * n;
  return result;
}
inline unsigned __float_as_uint(float x) {
  return __builtin_bit_cast(unsigned, x);
}
inline float __uint_as_float(unsigned x) {
  return __builtin_bit_cast(float, x);
}
inline float __int_as_float(int x) {
  return __builtin_bit_cast(float, x);
}
inline int __float2int_rn(float x) {
  return static_cast<int>(std::nearbyint(x));
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(std::uint64_t{a} * b >> 32);
}
inline float __fdividef(float a, float b) {
  return a / b;
}
#define __log2f(x) std::log2(static_cast<float>(x))
#define __logf(x) std::log(static_cast<float>(x))
