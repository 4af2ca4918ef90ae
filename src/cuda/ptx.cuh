// The instructions that kernels need, one function each: barriers, copies, registers, products of a warp, small
// arithmetic. Those from sm_80 on stand at the end; barriers in shared memory, bulk copies and registers are Hopper's.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace attend::cuda {

using Bf16 = __nv_bfloat16;
using Half = __half;

constexpr int kWarpgroup = 128;  // threads

__device__ __forceinline__ std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

// A number that all lanes of a warp have, said so that the compiler keeps it once for all of them.
__device__ __forceinline__ int uniform(int x) {
  return __shfl_sync(~0U, x, 0);
}

// A barrier in shared memory that counts arrivals and bytes; waiters name the parity of the phase they wait for.
struct Barrier {
  std::uint64_t state;

  __device__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)), "r"(arrivals));
  }
  __device__ void expect(int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(this)), "r"(bytes)
                 : "memory");
  }
  __device__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(this)) : "memory");
  }
  // Once all that this thread asked for by load_float_later is there.
  __device__ void arrive_when_loaded() {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(this)) : "memory");
  }
  __device__ void wait(int parity) {
    asm volatile(
        "{ .reg .pred p;\nAGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\nbra AGAIN;\n"
        "DONE: }" ::"r"(shared_address(this)),
        "r"(parity)
        : "memory");
  }
};

__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Between ordinary writes to shared memory and their reading by wgmma or a bulk copy.
__device__ __forceinline__ void fence_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Named barriers of some of the block's threads.
__device__ __forceinline__ void sync_threads(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void arrive_threads(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Has a tensor's description fetched before it is needed.
__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// A box of a tensor to shared memory, counted by `full`.
__device__ __forceinline__ void load_box(void* to, const CUtensorMap* map, Barrier* full, int x, int y, int z, int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(full)), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}
__device__ __forceinline__ void load_box(void* to, const CUtensorMap* map, Barrier* full, int x, int y, int z, int w,
                                         int u) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], "
      "[%2];" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(full)), "r"(x), "r"(y), "r"(z), "r"(w), "r"(u)
      : "memory");
}
__device__ __forceinline__ void store_box(const CUtensorMap* map, const void* from, int x, int y, int z, int w) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
               "r"(shared_address(from)), "r"(x), "r"(y), "r"(z), "r"(w)
               : "memory");
}
__device__ __forceinline__ void store_box(const CUtensorMap* map, const void* from, int x, int y, int z, int w, int u) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(map),
               "r"(shared_address(from)), "r"(x), "r"(y), "r"(z), "r"(w), "r"(u)
               : "memory");
}
// What the L2 is told of the lines that an instruction touches: the first to be given up, the last, or nothing.
__device__ __forceinline__ std::uint64_t evict_first() {
  std::uint64_t hint;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(hint));
  return hint;
}
__device__ __forceinline__ std::uint64_t evict_last() {
  std::uint64_t hint;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(hint));
  return hint;
}
__device__ __forceinline__ std::uint64_t evict_normal() {
  std::uint64_t hint;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(hint));
  return hint;
}
__device__ __forceinline__ void load_box_with(std::uint64_t hint, void* to, const CUtensorMap* map, Barrier* full,
                                              int x, int y, int z, int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4, "
      "%5, %6}], [%2], %7;" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(full)), "r"(x), "r"(y), "r"(z), "r"(w), "l"(hint)
      : "memory");
}
__device__ __forceinline__ void store_with(std::uint64_t hint, float4* to, const float4& x) {
  asm volatile("st.global.L2::cache_hint.v4.f32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(to), "f"(x.x), "f"(x.y), "f"(x.z),
               "f"(x.w), "l"(hint)
               : "memory");
}
__device__ __forceinline__ void store_with(std::uint64_t hint, float* to, float x) {
  asm volatile("st.global.L2::cache_hint.f32 [%0], %1, %2;" ::"l"(to), "f"(x), "l"(hint) : "memory");
}
// Plain stretches of memory, multiples of 16 bytes.
__device__ __forceinline__ void load_bytes(void* to, const void* from, int bytes, Barrier* full) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(full))
               : "memory");
}
__device__ __forceinline__ void add_floats(float* to, const void* from, int bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(from)), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void store_floats(float* to, const void* from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void commit_stores() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until what the stores of this thread read may be overwritten; until what they wrote is there.
__device__ __forceinline__ void wait_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
template <int kPending = 0>
__device__ __forceinline__ void wait_stores() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

// A float to shared memory, 0 where it is not `there`: then nothing is read.
__device__ __forceinline__ void load_float_later(float* to, const float* from, bool there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from), "r"(there ? 4 : 0)
               : "memory");
}

// Lets the next kernel on the stream be made ready, where it was put there by launch_behind.
__device__ __forceinline__ void let_next_kernel_begin() {
  asm volatile("griddepcontrol.launch_dependents;");
}
// Until the kernel before on the stream is done, and what it wrote is there.
__device__ __forceinline__ void wait_for_kernel() {
#if __CUDA_ARCH__ >= 900  // before, no kernel begins earlier
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// 16 bytes to shared memory, or zeros. Done when wait_copies says so.
__device__ __forceinline__ void copy_sixteen(std::uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_sixteen_if(bool there, std::uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Until all but the last kPending groups of this thread's copies are there.
template <int kPending = 0>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ __forceinline__ void store_shared(std::uint32_t to, std::uint32_t x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}
__device__ __forceinline__ void store_shared(std::uint32_t to, const uint4& x) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}
__device__ __forceinline__ uint4 load_shared(std::uint32_t from) {
  uint4 x;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(from)
               : "memory");
  return x;
}

// Four 8x8 matrices of 16-bit numbers, a row's address from each lane.
__device__ __forceinline__ void load_matrices(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
// The same, each matrix transposed.
__device__ __forceinline__ void load_transposed(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
// An 8x8 matrix of 16-bit numbers, a pair in each lane.
__device__ __forceinline__ std::uint32_t transposed(std::uint32_t pair) {
  std::uint32_t r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(pair));
  return r;
}
__device__ __forceinline__ void store_matrices(std::uint32_t address, std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                               std::uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The smaller of two; NaN where one is.
__device__ __forceinline__ float smaller_or_nan(float x, float y) {
  float z;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}

__device__ __forceinline__ float inverse_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two floats as a pair of the element type, the first in the low half.
template <class T>
__device__ __forceinline__ std::uint32_t pack(float low, float high);
template <>
__device__ __forceinline__ std::uint32_t pack<Bf16>(float low, float high) {
  std::uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
template <>
__device__ __forceinline__ std::uint32_t pack<Half>(float low, float high) {
  std::uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
// The two of a pair of bf16.
__device__ __forceinline__ float low_float(std::uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float high_float(std::uint32_t pair) {
  return __uint_as_float(pair & 0xFFFF0000U);
}
// a - b, of two pairs of f16.
__device__ __forceinline__ std::uint32_t subtract_halves(std::uint32_t a, std::uint32_t b) {
  std::uint32_t r;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
// (x & mask) ^ flip, in one instruction.
__device__ __forceinline__ std::uint32_t mask_and_flip(std::uint32_t x, std::uint32_t mask, std::uint32_t flip) {
  std::uint32_t r;
  asm("lop3.b32 %0, %1, %2, %3, 0x6A;" : "=r"(r) : "r"(x), "r"(mask), "r"(flip));
  return r;
}
// Two e4m3 to a pair of f16.
__device__ __forceinline__ std::uint32_t widen_e4m3(std::uint16_t two) {
  std::uint32_t r;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"(two));
  return r;
}
// Two floats to e4m3, the first in the low byte; what is too large becomes the largest.
__device__ __forceinline__ std::uint16_t pack_e4m3(float low, float high) {
  std::uint16_t r;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(high), "f"(low));
  return r;
}
__device__ __forceinline__ float widen(Bf16 x) {
  return __bfloat162float(x);
}
__device__ __forceinline__ float widen(Half x) {
  return __half2float(x);
}

// d (16 x 8, f32) += a (16 x 16) * b (16 x 8), by a warp.
template <class T>
__device__ __forceinline__ void multiply(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                         std::uint32_t b1) {
#define ATTEND_MULTIPLY(NAME)                                                         \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." NAME "." NAME                 \
               ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                       \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
  if constexpr (std::is_same_v<T, Half>)
    ATTEND_MULTIPLY("f16");
  else
    ATTEND_MULTIPLY("bf16");
#undef ATTEND_MULTIPLY
}

}  // namespace attend::cuda
