// A block of a kernel on the CPU: every thread of it is a fiber, and warps meet where the GPU's would. For kernels
// whose instructions are all functions of cuda/ptx.cuh, in whose place the one beside this file stands.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <vector_types.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__
#undef __noinline__
#define __noinline__

namespace emulated {

struct Place {
  unsigned x = 0, y = 0, z = 0;
};
extern Place thread, block, threads, blocks;
constexpr std::size_t kSharedBytes = 227 * 1024;

// Runs `body` once for every thread of every block.
void run(unsigned grid, unsigned block_threads, void (*body)(const void*), const void* args);
// Until all threads of the warp, or of the block, are here.
void meet_warp();
void meet_block();
void yield();

// What every lane of the warp gives, for all of them to read until they meet twice more.
const void* exchange(const void* mine, std::size_t bytes);
template <class T>
const T* all_lanes(const T& mine) {
  return static_cast<const T*>(exchange(&mine, sizeof(T)));
}
inline unsigned lane() {
  return thread.x % 32;
}

}  // namespace emulated

#define threadIdx emulated::thread
#define blockIdx emulated::block
#define blockDim emulated::threads
#define gridDim emulated::blocks

inline void __syncthreads() {
  emulated::meet_block();
}
inline void __syncwarp() {
  emulated::meet_warp();
}
[[noreturn]] inline void __trap() {
  std::abort();
}
template <class T>
T __shfl_sync(unsigned, T x, int from) {
  return emulated::all_lanes(x)[from % 32];
}
template <class T>
T __shfl_up_sync(unsigned, T x, unsigned by) {
  const T* const all = emulated::all_lanes(x);
  return emulated::lane() >= by ? all[emulated::lane() - by] : x;
}
template <class T>
T __shfl_xor_sync(unsigned, T x, int with) {
  return emulated::all_lanes(x)[emulated::lane() ^ static_cast<unsigned>(with)];
}
inline unsigned __ballot_sync(unsigned, bool x) {
  const bool* const all = emulated::all_lanes(x);
  unsigned bits = 0;
  for (unsigned n = 0; n < 32; ++n) bits |= all[n] ? 1U << n : 0U;
  return bits;
}
inline bool __any_sync(unsigned mask, bool x) {
  return __ballot_sync(mask, x) != 0;
}
inline bool __all_sync(unsigned mask, bool x) {
  return __ballot_sync(mask, x) == ~0U;
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
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(std::uint64_t{a} * b >> 32);
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
inline float __fdividef(float a, float b) {
  return a / b;
}
inline float __log2f(float x) {
  return std::log2(x);
}
inline float __logf(float x) {
  return std::log(x);
}
