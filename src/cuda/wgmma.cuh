// The matrix products of a warpgroup, and the descriptors of their operands in shared memory.
#pragma once

#include "cuda/ptx.cuh"

namespace attend::cuda {

// An operand in shared memory, in rows of 128 bytes swizzled by the copy engine. `leading` and `stride` are the bytes
// from one swizzled group to the next: along a row of groups, and from eight rows to the next eight.
__device__ __forceinline__ std::uint64_t descriptor(std::uint32_t address, int leading, int stride) {
  return static_cast<std::uint64_t>((address & 0x3FFFF) >> 4) | (static_cast<std::uint64_t>(leading >> 4) << 16) |
         (static_cast<std::uint64_t>(stride >> 4) << 32) | (1ULL << 62);
}
// The same without a swizzle: blocks of eight rows of 16 bytes, `leading` bytes from one to the next along the summed
// index.
__device__ __forceinline__ std::uint64_t plain_descriptor(std::uint32_t address, int leading) {
  return static_cast<std::uint64_t>((address & 0x3FFFF) >> 4) | (static_cast<std::uint64_t>(leading >> 4) << 16);
}
// The first with the parts that never change put together before, and a stride of 1,024: one addition a product.
struct SharedOperand {
  std::uint32_t low;

  __device__ __forceinline__ SharedOperand(const void* address, int leading)
      : low(shared_address(address) >> 4 | static_cast<std::uint32_t>(leading >> 4 << 16)) {}
  __device__ __forceinline__ std::uint64_t at(int bytes) const {
    return static_cast<std::uint64_t>(1024U >> 4 | 1U << 30) << 32 | (low + static_cast<std::uint32_t>(bytes >> 4));
  }
};

__device__ __forceinline__ void products_begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void products_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most kPending groups of products are still running.
template <int kPending>
__device__ __forceinline__ void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// d (64 x N, f32) = a (64 x 16) * b (16 x N), added to d where `add` is set.
//   ss: a and b in shared memory; kA and kB: 0 where the summed index is contiguous, 1 where the other is.
//   rs: a in registers, as the accumulators of another product lie once packed in pairs.
template <class T, int N>
struct Product;

// clang-format off
#define ATTEND_REGISTERS_4 "%0, %1, %2, %3"
#define ATTEND_OUTPUTS_4 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define ATTEND_REGISTERS_16 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define ATTEND_OUTPUTS_16 \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
  "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define ATTEND_REGISTERS_32 ATTEND_REGISTERS_16 \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define ATTEND_OUTPUTS_32 ATTEND_OUTPUTS_16, \
  "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
  "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define ATTEND_REGISTERS_40 ATTEND_REGISTERS_32 \
  ", %32, %33, %34, %35, %36, %37, %38, %39"
#define ATTEND_OUTPUTS_40 ATTEND_OUTPUTS_32, \
  "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define ATTEND_REGISTERS_48 ATTEND_REGISTERS_40 \
  ", %40, %41, %42, %43, %44, %45, %46, %47"
#define ATTEND_OUTPUTS_48 ATTEND_OUTPUTS_40, \
  "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define ATTEND_REGISTERS_64 ATTEND_REGISTERS_48 \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define ATTEND_OUTPUTS_64 ATTEND_OUTPUTS_48, \
  "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), \
  "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define ATTEND_REGISTERS_88 ATTEND_REGISTERS_64 \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87"
#define ATTEND_OUTPUTS_88 ATTEND_OUTPUTS_64, \
  "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), \
  "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), \
  "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87])
#define ATTEND_REGISTERS_96 ATTEND_REGISTERS_88 \
  ", %88, %89, %90, %91, %92, %93, %94, %95"
#define ATTEND_OUTPUTS_96 ATTEND_OUTPUTS_88, \
  "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define ATTEND_REGISTERS_128 ATTEND_REGISTERS_96 \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define ATTEND_OUTPUTS_128 ATTEND_OUTPUTS_96, \
  "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]), \
  "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]), \
  "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), \
  "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
// REGS: accumulators of a thread, N / 2; I0...: the numbers after them, which inline assembly counts on with.
#define ATTEND_PRODUCT(T, NAME, N, REGS, I0, I1, I2, I3, I4, I5, I6) \
  template <> \
  struct Product<T, N> { \
    template <int kA, int kB> \
    __device__ __forceinline__ static void ss(float (&d)[REGS], std::uint64_t a, std::uint64_t b, int add) { \
      asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #I2 ", 0;\n" \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" ATTEND_REGISTERS_##REGS "}, %" #I0 \
                   ", %" #I1 ", p, 1, 1, %" #I3 ", %" #I4 "; }\n" \
                   : ATTEND_OUTPUTS_##REGS \
                   : "l"(a), "l"(b), "r"(add), "n"(kA), "n"(kB)); \
    } \
    template <int kB> \
    __device__ __forceinline__ static void rs(float (&d)[REGS], const std::uint32_t* a, std::uint64_t b, int add) { \
      asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #I5 ", 0;\n" \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" ATTEND_REGISTERS_##REGS "}, {%" #I0 \
                   ", %" #I1 ", %" #I2 ", %" #I3 "}, %" #I4 ", p, 1, 1, %" #I6 "; }\n" \
                   : ATTEND_OUTPUTS_##REGS \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(kB)); \
    } \
  };
#define ATTEND_PRODUCTS(...) \
  ATTEND_PRODUCT(Bf16, "bf16", __VA_ARGS__) \
  ATTEND_PRODUCT(Half, "f16", __VA_ARGS__)
ATTEND_PRODUCTS(8, 4, 4, 5, 6, 7, 8, 9, 10)
ATTEND_PRODUCTS(32, 16, 16, 17, 18, 19, 20, 21, 22)
ATTEND_PRODUCTS(64, 32, 32, 33, 34, 35, 36, 37, 38)
ATTEND_PRODUCTS(80, 40, 40, 41, 42, 43, 44, 45, 46)
ATTEND_PRODUCTS(96, 48, 48, 49, 50, 51, 52, 53, 54)
ATTEND_PRODUCTS(128, 64, 64, 65, 66, 67, 68, 69, 70)
ATTEND_PRODUCTS(176, 88, 88, 89, 90, 91, 92, 93, 94)
ATTEND_PRODUCTS(192, 96, 96, 97, 98, 99, 100, 101, 102)
ATTEND_PRODUCTS(256, 128, 128, 129, 130, 131, 132, 133, 134)
#undef ATTEND_PRODUCTS
#undef ATTEND_PRODUCT
// clang-format on

}  // namespace attend::cuda
