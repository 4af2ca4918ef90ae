// The AMX instructions that the emulator knows, decoded from their bytes.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

namespace attend::test::amx {

// The general registers in the order of their numbers: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15.
using Registers = std::array<std::uint64_t, 16>;

struct MemoryOperand {
  static constexpr int kNone = -1, kNextInstruction = -2;
  int base = kNone;   // a register, or relative to the next instruction
  int index = kNone;  // for tiles: the stride from row to row
  int scale = 0;      // the index is shifted by it
  std::int32_t displacement = 0;
  bool thread_segment = false;  // relative to fs
  bool short_address = false;   // 32 bits of it
};

enum class Operation { load_config, store_config, release, zero, load, store, dot_bf16 };

struct Instruction {
  Operation operation = Operation::release;
  int length = 0;
  int tile = 0;  // the one written, or stored
  int left = 0;  // dot_bf16: tile += left . right
  int right = 0;
  MemoryOperand memory{};
};

// Empty for anything that is not one of these instructions. Reads no byte past the end of what it decodes.
std::optional<Instruction> decode(const std::uint8_t* code);

// Where a tile's first row or a configuration lies, and the bytes from row to row.
std::uint64_t first_byte(const Instruction& instruction, const Registers& registers, const std::uint8_t* code);
std::int64_t row_stride(const Instruction& instruction, const Registers& registers);

}  // namespace attend::test::amx
