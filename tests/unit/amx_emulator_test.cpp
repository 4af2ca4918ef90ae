// The AMX emulator: what the assembler makes is decoded, the instructions do what the manual says, and nothing else
// changes. Where the CPU has AMX the same instructions run on its tiles, and hold the expectations to the truth.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "base/cpu.hpp"
#include "base/random.hpp"
#include "support/amx/emulator.hpp"
#include "support/amx/instruction.hpp"
#include "support/amx/tiles.hpp"
#include "support/kernels.hpp"

namespace attend::test {
namespace {

using amx::Instruction;
using amx::MemoryOperand;
using amx::Operation;
using amx::Registers;
using amx::Tiles;

bool tiles_run() {
  for (const KernelTable* table : testable_kernels())
    if (std::string(table->name) == "amx") return true;
  return false;
}
bool emulated() {
  return tiles_run() && !cpu_features().amx;
}

struct alignas(64) Config {
  std::uint8_t bytes[64] = {};

  void set(int tile, int rows, int row_bytes) {
    bytes[0] = 1;
    bytes[16 + 2 * tile] = static_cast<std::uint8_t>(row_bytes);
    bytes[48 + tile] = static_cast<std::uint8_t>(rows);
  }
};
// A product of M x K pairs and K pairs x N: the sum is tile 0, the factors tiles 1 and 2.
Config config_of(int M, int K, int N) {
  Config config;
  config.set(0, M, 4 * N);
  config.set(1, M, 4 * K);
  config.set(2, K, 4 * N);
  return config;
}

using Rows = std::array<std::array<std::uint32_t, 16>, 16>;

// ---- decoding

// Each instruction between two labels, as the assembler writes it.
__asm__(R"(
.pushsection .rodata
attend_amx_encodings:
  ldtilecfg (%rax)
  ldtilecfg 0x40(%r13,%r12,4)
  ldtilecfg 0x12345(%rip)
  sttilecfg -0x100(%rsp)
  sttilecfg %fs:0x30
  tilerelease
  tilezero %tmm6
  tileloadd (%rdx,%rsi,1), %tmm3
  tileloadd -8(%rbp,%r9,2), %tmm7
  tileloadd (%r12,%r15,8), %tmm0
  tileloadd 0x7654321(,%rcx,4), %tmm1
  tileloadd (%r13), %tmm2
  tileloaddt1 0x1000(%rsp,%rax,1), %tmm5
  tileloadd (%eax,%ebx,1), %tmm4
  tilestored %tmm4, 0x20(%r8,%r10,1)
  tdpbf16ps %tmm3, %tmm5, %tmm1
  ud2
.popsection
)");
extern "C" const std::uint8_t attend_amx_encodings[];

struct Expected {
  Operation operation;
  int tile, left, right;
  MemoryOperand memory;
};
const Expected kExpected[] = {
    {Operation::load_config, 0, 0, 0, {.base = 0}},
    {Operation::load_config, 0, 0, 0, {.base = 13, .index = 12, .scale = 2, .displacement = 0x40}},
    {Operation::load_config, 0, 0, 0, {.base = MemoryOperand::kNextInstruction, .displacement = 0x12345}},
    {Operation::store_config, 0, 0, 0, {.base = 4, .displacement = -0x100}},
    {Operation::store_config, 0, 0, 0, {.displacement = 0x30, .thread_segment = true}},
    {Operation::release, 0, 0, 0, {}},
    {Operation::zero, 6, 0, 0, {}},
    {Operation::load, 3, 0, 0, {.base = 2, .index = 6}},
    {Operation::load, 7, 0, 0, {.base = 5, .index = 9, .scale = 1, .displacement = -8}},
    {Operation::load, 0, 0, 0, {.base = 12, .index = 15, .scale = 3}},
    {Operation::load, 1, 0, 0, {.index = 1, .scale = 2, .displacement = 0x7654321}},
    {Operation::load, 2, 0, 0, {.base = 13}},
    {Operation::load, 5, 0, 0, {.base = 4, .index = 0, .displacement = 0x1000}},
    {Operation::load, 4, 0, 0, {.base = 0, .index = 3, .short_address = true}},
    {Operation::store, 4, 0, 0, {.base = 8, .index = 10, .displacement = 0x20}},
    {Operation::dot_bf16, 1, 5, 3, {}},
};

TEST(AmxEmulator, DecodesWhatTheAssemblerMakes) {
  const std::uint8_t* at = attend_amx_encodings;
  for (std::size_t n = 0; n < std::size(kExpected); ++n) {
    SCOPED_TRACE("instruction " + std::to_string(n));
    const auto got = amx::decode(at);
    ASSERT_TRUE(got.has_value());
    const Expected& wanted = kExpected[n];
    EXPECT_EQ(got->operation, wanted.operation);
    EXPECT_EQ(got->tile, wanted.tile);
    if (wanted.operation == Operation::dot_bf16) {
      EXPECT_EQ(got->left, wanted.left);
      EXPECT_EQ(got->right, wanted.right);
    }
    EXPECT_EQ(got->memory.base, wanted.memory.base);
    EXPECT_EQ(got->memory.index, wanted.memory.index);
    if (wanted.memory.index != MemoryOperand::kNone) {
      EXPECT_EQ(got->memory.scale, wanted.memory.scale);
    }
    EXPECT_EQ(got->memory.displacement, wanted.memory.displacement);
    EXPECT_EQ(got->memory.thread_segment, wanted.memory.thread_segment);
    EXPECT_EQ(got->memory.short_address, wanted.memory.short_address);
    at += got->length;
  }
  EXPECT_FALSE(amx::decode(at)) << "ud2 is none of them";
}

TEST(AmxEmulator, RefusesWhatIsNoTileInstruction) {
  const std::vector<std::vector<std::uint8_t>> bad = {
      {0xC4, 0xE2, 0xF8, 0x49, 0xC0},        // W
      {0xC4, 0xE2, 0x7C, 0x49, 0xC0},        // L
      {0xC4, 0xE1, 0x78, 0x49, 0xC0},        // another map
      {0xC4, 0xE2, 0x78, 0x49, 0xC1},        // no tilerelease
      {0xC4, 0x62, 0x7B, 0x49, 0xC0},        // tile 8
      {0xC4, 0xE2, 0x73, 0x49, 0xC0},        // tilezero with a source
      {0xC4, 0xE2, 0x7B, 0x4B, 0x00},        // a tile load without SIB
      {0xC4, 0xE2, 0x5A, 0x5C, 0x04, 0x00},  // a product from memory
      {0xC4, 0xE2, 0x12, 0x5C, 0xC1},        // source tile 13
      {0xC4, 0xE2, 0x5B, 0x5C, 0xC1},        // of f16
      {0xC4, 0xE2, 0x5A, 0x5E, 0xC1},        // of bytes
      {0x0F, 0x0B},
  };
  for (const auto& code : bad) {
    std::vector<std::uint8_t> padded = code;
    padded.resize(16);
    EXPECT_FALSE(amx::decode(padded.data())) << testing::PrintToString(code);
  }
}

TEST(AmxEmulator, FindsItsOperandInMemory) {
  Registers registers;
  for (std::size_t n = 0; n < registers.size(); ++n) registers[n] = 0x100000000ULL * (n + 1) + n;
  const std::uint8_t code[16] = {};
  const auto at = [&](Operation operation, const MemoryOperand& memory) {
    return amx::first_byte({.operation = operation, .length = 9, .memory = memory}, registers, code);
  };
  EXPECT_EQ(at(Operation::load, {.base = 3, .index = 5, .displacement = -1}), registers[3] - 1);
  EXPECT_EQ(at(Operation::load_config, {.base = 3, .index = 5, .scale = 2}), registers[3] + 4 * registers[5]);
  EXPECT_EQ(at(Operation::load_config, {.base = MemoryOperand::kNextInstruction, .displacement = 8}),
            reinterpret_cast<std::uint64_t>(code) + 17);
  EXPECT_EQ(at(Operation::store, {.base = 3, .short_address = true}), 3U);
  const auto stride = [&](const MemoryOperand& memory) {
    return amx::row_stride({.operation = Operation::load, .memory = memory}, registers);
  };
  EXPECT_EQ(stride({.base = 3}), 0);
  EXPECT_EQ(stride({.base = 3, .index = 4, .scale = 3}), static_cast<std::int64_t>(8 * registers[4]));
}

// ---- what is refused

TEST(AmxTiles, ConfigurationsAreChecked) {
  Tiles tiles;
  const auto refused = [&](auto change) {
    Config config = config_of(16, 16, 16);
    change(config.bytes);
    const char* text = tiles.load_config(config.bytes);
    return std::string(text == nullptr ? "" : text);
  };
  EXPECT_EQ(refused([](std::uint8_t*) {}), "");
  EXPECT_EQ(refused([](std::uint8_t* c) { c[0] = 0, c[7] = 9; }), "");  // palette 0: the rest is not looked at
  EXPECT_NE(tiles.zero(0), nullptr) << "palette 0 leaves no tile";
  EXPECT_EQ(refused([](std::uint8_t* c) { c[0] = 2; }), "ldtilecfg: the palette is neither 0 nor 1");
  for (const int reserved : {2, 15, 32, 47, 56, 63})
    EXPECT_EQ(refused([&](std::uint8_t* c) { c[reserved] = 1; }), "ldtilecfg: reserved bytes are not zero");
  EXPECT_EQ(refused([](std::uint8_t* c) { c[16] = 65; }), "ldtilecfg: a row of a tile has more than 64 bytes");
  EXPECT_EQ(refused([](std::uint8_t* c) { c[17] = 1; }), "ldtilecfg: a row of a tile has more than 64 bytes");
  EXPECT_EQ(refused([](std::uint8_t* c) { c[48] = 17; }), "ldtilecfg: a tile has more than 16 rows");
  EXPECT_EQ(refused([](std::uint8_t* c) { c[48] = 0; }), "ldtilecfg: a tile has rows or columns, not both");
  EXPECT_EQ(refused([](std::uint8_t* c) { c[50 + 5] = 1; }), "ldtilecfg: a tile has rows or columns, not both");
}

TEST(AmxTiles, ProductsThatDoNotFitAreRefused) {
  Tiles tiles;
  EXPECT_STREQ(tiles.dot_bf16(0, 1, 2), "tdpbf16ps: a tile is not configured");
  ASSERT_EQ(tiles.load_config(config_of(4, 5, 6).bytes), nullptr);
  EXPECT_EQ(tiles.dot_bf16(0, 1, 2), nullptr);
  EXPECT_STREQ(tiles.dot_bf16(0, 1, 3), "tdpbf16ps: a tile is not configured");
  EXPECT_STREQ(tiles.dot_bf16(0, 2, 1), "tdpbf16ps: the shapes of the tiles do not fit");
  for (const auto& [a, b, c] : {std::array{0, 0, 2}, {0, 1, 0}, {1, 2, 2}})
    EXPECT_STREQ(tiles.dot_bf16(a, b, c), "tdpbf16ps: the three tiles are not distinct");
  Config odd = config_of(4, 5, 6);
  odd.bytes[16] = odd.bytes[20] = 23;
  ASSERT_EQ(tiles.load_config(odd.bytes), nullptr);
  EXPECT_STREQ(tiles.dot_bf16(0, 1, 2), "tdpbf16ps: a row is no whole number of pairs");
  EXPECT_STREQ(tiles.load(7, odd.bytes, 0), "tileloadd: the tile is not configured");
  EXPECT_STREQ(tiles.store(7, odd.bytes, 0), "tilestored: the tile is not configured");
  EXPECT_STREQ(tiles.zero(7), "tilezero: the tile is not configured");
}

TEST(AmxTiles, ARestartedLoadBeginsAtItsRow) {
  Config config;
  config.set(3, 4, 8);
  config.bytes[1] = 2;
  Tiles tiles;
  ASSERT_EQ(tiles.load_config(config.bytes), nullptr);
  std::uint8_t from[4][8], to[4][8];
  std::memset(from, 7, sizeof from);
  std::memset(to, 9, sizeof to);
  Config kept;
  tiles.store_config(kept.bytes);
  EXPECT_EQ(kept.bytes[1], 2);
  ASSERT_EQ(tiles.load(3, from[0], 8), nullptr);
  tiles.store_config(kept.bytes);
  EXPECT_EQ(kept.bytes[1], 0);
  ASSERT_EQ(tiles.store(3, to[0], 8), nullptr);
  for (int r = 0; r < 4; ++r) EXPECT_EQ(to[r][0], r < 2 ? 0 : 7) << r;
}

// ---- the instructions, by the emulator or by the CPU

class AmxInstructions : public testing::Test {
 protected:
  void SetUp() override {
    if (!tiles_run()) GTEST_SKIP() << "neither tiles nor AVX-512 with BF16, which the emulator needs";
  }
  void TearDown() override {
    if (tiles_run()) __asm__ volatile("tilerelease");
  }

  static void configure(const Config& config) { __asm__ volatile("ldtilecfg %0" ::"m"(config)); }
  // sum += left . right for the configuration above; all go through memory with rows of 64 bytes.
  [[gnu::noinline]] static void multiply(Rows& sum, const Rows& left, const Rows& right) {
    __asm__ volatile(
        "tileloadd (%[c],%[stride],1), %%tmm0\n"
        "tileloadd (%[a],%[stride],1), %%tmm1\n"
        "tileloaddt1 (%[b],%[stride],1), %%tmm2\n"
        "tdpbf16ps %%tmm2, %%tmm1, %%tmm0\n"
        "tilestored %%tmm0, (%[c],%[stride],1)\n" ::[c] "r"(&sum),
        [a] "r"(&left), [b] "r"(&right), [stride] "r"(std::int64_t{64})
        : "memory");
  }
};

float flushed(float x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0F, x) : x;
}
float half_of(std::uint32_t cell, int which) {
  return flushed(std::bit_cast<float>(which == 0 ? cell << 16 : cell & 0xFFFF0000U));
}
// The manual's loops, a number at a time.
Rows product_of(const Rows& sum, const Rows& left, const Rows& right, int M, int K, int N) {
  Rows result = sum;
  for (std::size_t m = 0; m < static_cast<std::size_t>(M); ++m)
    for (std::size_t n = 0; n < static_cast<std::size_t>(N); ++n) {
      float part[2] = {0, 0};
      for (std::size_t k = 0; k < static_cast<std::size_t>(K); ++k)
        for (int half = 0; half < 2; ++half)
          part[half] = flushed(std::fma(half_of(left[m][k], half), half_of(right[k][n], half), part[half]));
      const float both = flushed(part[0] + part[1]);
      result[m][n] = std::bit_cast<std::uint32_t>(flushed(flushed(std::bit_cast<float>(sum[m][n])) + both));
    }
  return result;
}

std::uint32_t draw(std::uint64_t seed, std::uint64_t n) {
  return dropout_bits(seed, 0, 0, 0, static_cast<std::int64_t>(n));
}
// Numbers whose products and sums round and cancel, some of them subnormal; or `tiny`, whose products are.
Rows draw_pairs(std::uint64_t seed, bool tiny = false) {
  Rows rows;
  for (std::size_t n = 0; n < 256; ++n) {
    const std::uint32_t bits = draw(seed, n);
    const auto half = [&](std::uint32_t x) {
      const std::uint32_t exponent = (tiny ? 0x3C : 0x7B) + (x >> 8 & 7);
      return (x & 0x807F) | ((x & 0x1F) == 0 ? 0 : exponent << 7);
    };
    rows[n / 16][n % 16] = half(bits & 0xFFFF) | half(bits >> 16) << 16;
  }
  return rows;
}
Rows draw_floats(std::uint64_t seed, bool tiny = false) {
  Rows rows;
  for (std::size_t n = 0; n < 256; ++n) {
    const std::uint32_t bits = draw(seed, n);
    rows[n / 16][n % 16] = (bits & 0x807FFFFF) | ((bits & 0x1F) == 0 ? 0U : tiny ? 0x00800000U : 0x3F000000U);
  }
  return rows;
}

TEST_F(AmxInstructions, TheProductIsThatOfTheManual) {
  std::uint64_t seed = 0;
  for (const auto& [M, K, N] : {std::array{16, 16, 16}, {1, 1, 1}, {3, 16, 7}, {16, 5, 16}, {9, 8, 13}, {16, 1, 2}})
    for (int repeat = 0; repeat < 20; ++repeat) {
      const bool tiny = repeat % 2 == 1;
      const Rows left = draw_pairs(++seed, tiny), right = draw_pairs(++seed, tiny), before = draw_floats(++seed, tiny);
      const Rows wanted = product_of(before, left, right, M, K, N);
      Rows sum = before;
      configure(config_of(M, K, N));
      multiply(sum, left, right);
      for (std::size_t m = 0; m < 16; ++m)
        for (std::size_t n = 0; n < 16; ++n)
          ASSERT_EQ(sum[m][n], wanted[m][n])
              << M << "x" << K << "x" << N << " at " << m << ", " << n << ": " << std::bit_cast<float>(sum[m][n])
              << ", expected " << std::bit_cast<float>(wanted[m][n]);
    }
}

TEST_F(AmxInstructions, TheSumOfEvenAndOddIsNotAChain) {
  // Even: 2^24 + 1 + 1, which stays 2^24; odd: 1. One chain in any order of pairs would give another sum.
  Rows left{}, right{}, sum{};
  const auto pair = [](float even, float odd) {
    return std::bit_cast<std::uint32_t>(even) >> 16 | (std::bit_cast<std::uint32_t>(odd) & 0xFFFF0000U);
  };
  left[0][0] = pair(16777216.0F, 1), left[0][1] = pair(1, 1), left[0][2] = pair(1, 1);
  for (std::size_t k = 0; k < 3; ++k) right[k][0] = pair(1, 1);
  configure(config_of(16, 16, 16));
  multiply(sum, left, right);
  EXPECT_EQ(std::bit_cast<float>(sum[0][0]), 16777220.0F);  // 2^24 + 3, to even
}

TEST_F(AmxInstructions, InfinityAndNanGoThrough) {
  Rows left{}, right{}, sum{};
  left[0][0] = 0x00007F80, left[1][0] = 0x7FC00000, left[2][0] = 0x00003F80;
  right[0][0] = 0x3F803F80, right[0][1] = 0xBF80BF80;
  configure(config_of(16, 16, 16));
  multiply(sum, left, right);
  EXPECT_EQ(std::bit_cast<float>(sum[0][0]), std::numeric_limits<float>::infinity());
  EXPECT_EQ(std::bit_cast<float>(sum[0][1]), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(std::bit_cast<float>(sum[0][2]))) << "infinity times zero";
  EXPECT_TRUE(std::isnan(std::bit_cast<float>(sum[1][0])));
  EXPECT_EQ(std::bit_cast<float>(sum[2][1]), -1.0F);
}

TEST_F(AmxInstructions, LoadsAndStoresByAnyStride) {
  alignas(64) std::uint8_t memory[4096], copy[4096];
  for (std::size_t n = 0; n < sizeof memory; ++n) memory[n] = static_cast<std::uint8_t>(draw(1, n));
  Config config;
  config.set(4, 5, 13);
  configure(config);
  for (const std::int64_t stride : {64, 13, 0, -40, 100}) {
    for (int repeat = 0; repeat < 2; ++repeat) {  // by signal, by jump
      std::memset(copy, 0xEE, sizeof copy);
      const std::uint8_t* from = memory + 1000;
      std::uint8_t* to = copy + 1000;
      __asm__ volatile(
          "mov %[from], %%r13\n mov %[stride], %%r12\n"
          "tilezero %%tmm4\n tileloadd 3(%%r13,%%r12,2), %%tmm4\n"
          "mov %[to], %%r12\n tilestored %%tmm4, -0x90(%%r12,%[stride],1)\n" ::[from] "r"(from),
          [to] "r"(to), [stride] "r"(stride)
          : "r12", "r13", "memory");
      std::uint8_t wanted[4096];
      std::memset(wanted, 0xEE, sizeof wanted);
      for (std::int64_t r = 0; r < 5; ++r)
        std::memcpy(wanted + 1000 - 0x90 + r * stride, memory + 1000 + 3 + 2 * r * stride, 13);
      ASSERT_EQ(std::memcmp(copy, wanted, sizeof copy), 0) << "stride " << stride;
    }
  }
}

TEST_F(AmxInstructions, ConfigurationComesBack) {
  Config kept;
  std::memset(kept.bytes, 1, sizeof kept.bytes);
  __asm__ volatile("tilerelease\n sttilecfg %0" : "=m"(kept));
  EXPECT_EQ(std::memcmp(kept.bytes, Config().bytes, 64), 0) << "none: zeros";
  Config config = config_of(7, 9, 11);
  configure(config);
  __asm__ volatile("sttilecfg %0" : "=m"(kept));
  EXPECT_EQ(std::memcmp(kept.bytes, config.bytes, 64), 0);
}

TEST_F(AmxInstructions, ThreadsHaveTilesOfTheirOwn) {
  const auto work = [](std::uint64_t seed) {
    const Rows left = draw_pairs(seed), right = draw_pairs(seed + 100);
    bool same = true;
    for (int repeat = 0; repeat < 300; ++repeat) {
      Rows sum{};
      configure(config_of(16, 16, 16));
      multiply(sum, left, right);
      same &= sum == product_of({}, left, right, 16, 16, 16);
      __asm__ volatile("tilerelease");
    }
    return same;
  };
  std::array<bool, 4> same{};
  std::vector<std::thread> threads;
  for (std::size_t n = 0; n < same.size(); ++n) threads.emplace_back([&, n] { same[n] = work(n); });
  for (std::thread& thread : threads) thread.join();
  for (const bool thread_same : same) EXPECT_TRUE(thread_same);
}

// Everything a program may hold while it uses tiles.
struct alignas(64) Machine {
  std::uint64_t general[13];  // all but rsp, rbp and the pointer to this
  std::uint64_t flags;
  std::uint64_t red_zone[16];
  std::uint64_t masks[8];
  alignas(64) float vectors[32][16];
};

// Loads `m`, multiplies tiles, stores all into `m` again.
[[gnu::noinline, gnu::target("avx512f,avx512bw")]] void pass_through(Machine& m) {
  __asm__ volatile(
      R"(
.irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
  vmovups %c[vectors]+64*\n(%%rdi), %%zmm\n
.endr
.irp n, 0,1,2,3,4,5,6,7
  kmovq %c[masks]+8*\n(%%rdi), %%k\n
.endr
  lea -256(%%rsp), %%rsp
.irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
  mov %c[red]+8*\n(%%rdi), %%rax
  mov %%rax, -128+8*\n(%%rsp)
.endr
  mov 0(%%rdi), %%rax
  mov 8(%%rdi), %%rcx
  mov 16(%%rdi), %%rdx
  mov 24(%%rdi), %%rbx
  mov 32(%%rdi), %%rsi
  mov 40(%%rdi), %%r8
  mov 48(%%rdi), %%r9
  mov 56(%%rdi), %%r10
  mov 64(%%rdi), %%r11
  mov 72(%%rdi), %%r12
  mov 80(%%rdi), %%r13
  mov 88(%%rdi), %%r14
  mov 96(%%rdi), %%r15
  stc
  tilezero %%tmm0
  tdpbf16ps %%tmm2, %%tmm1, %%tmm0
  mov %%rax, 0(%%rdi)
  setc %%al
  movzbl %%al, %%eax
  mov %%rax, %c[flags](%%rdi)
  mov %%rcx, 8(%%rdi)
  mov %%rdx, 16(%%rdi)
  mov %%rbx, 24(%%rdi)
  mov %%rsi, 32(%%rdi)
  mov %%r8, 40(%%rdi)
  mov %%r9, 48(%%rdi)
  mov %%r10, 56(%%rdi)
  mov %%r11, 64(%%rdi)
  mov %%r12, 72(%%rdi)
  mov %%r13, 80(%%rdi)
  mov %%r14, 88(%%rdi)
  mov %%r15, 96(%%rdi)
.irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
  mov -128+8*\n(%%rsp), %%rax
  mov %%rax, %c[red]+8*\n(%%rdi)
.endr
  lea 256(%%rsp), %%rsp
.irp n, 0,1,2,3,4,5,6,7
  kmovq %%k\n, %c[masks]+8*\n(%%rdi)
.endr
.irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
  vmovups %%zmm\n, %c[vectors]+64*\n(%%rdi)
.endr
)" ::"D"(&m),
      [flags] "i"(offsetof(Machine, flags)), [red] "i"(offsetof(Machine, red_zone)),
      [masks] "i"(offsetof(Machine, masks)), [vectors] "i"(offsetof(Machine, vectors))
      : "rax", "rbx", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "xmm1", "xmm2",
        "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15",
        "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27",
        "xmm28", "xmm29", "xmm30", "xmm31", "k1", "k2", "k3", "k4", "k5", "k6", "k7", "cc", "memory");
}

TEST_F(AmxInstructions, NothingElseChanges) {
  configure(config_of(16, 16, 16));
  Machine wanted;
  auto* bytes = reinterpret_cast<std::uint8_t*>(&wanted);
  for (std::size_t n = 0; n < sizeof wanted; ++n) bytes[n] = static_cast<std::uint8_t>(draw(3, n));
  wanted.flags = 1;
  for (int repeat = 0; repeat < 3; ++repeat) {  // by signal, by jump
    Machine machine = wanted;
    pass_through(machine);
    EXPECT_EQ(std::memcmp(&machine, &wanted, sizeof wanted), 0);
  }
}

TEST_F(AmxInstructions, OneMetAgainTakesNoSignal) {
  if (!emulated() || !amx::replaces_instructions()) GTEST_SKIP() << "tiles of the CPU, or no leave to replace code";
  Rows sum{}, one{};
  configure(config_of(16, 16, 16));
  multiply(sum, one, one);
  const long before = amx::signals_taken();
  for (int n = 0; n < 10; ++n) multiply(sum, one, one);
  EXPECT_EQ(amx::signals_taken(), before);
}

using AmxInstructionsDeathTest = AmxInstructions;

TEST_F(AmxInstructionsDeathTest, OtherIllegalInstructionsStayIllegal) {
  EXPECT_DEATH(__asm__ volatile("ud2"), "");
}

TEST_F(AmxInstructionsDeathTest, WhatTheCpuRefusesEndsWithAText) {
  if (!emulated()) GTEST_SKIP() << "the CPU says nothing";
  Config config = config_of(16, 16, 16);
  config.bytes[0] = 3;
  EXPECT_DEATH(configure(config), "AMX emulator: ldtilecfg: the palette is neither 0 nor 1");
  EXPECT_DEATH(__asm__ volatile("tilerelease\n tilezero %tmm0"), "AMX emulator: tilezero: the tile is not configured");
}

}  // namespace
}  // namespace attend::test
