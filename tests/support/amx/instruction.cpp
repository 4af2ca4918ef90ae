// VEX-encoded instructions of the map 0F 38 with the opcodes 49, 4B and 5C, as the manual lists them.
#include "support/amx/instruction.hpp"

#include <cstring>

namespace attend::test::amx {
namespace {

enum Prefix { kNoPrefix, k66, kF3, kF2 };  // as VEX.pp numbers them

struct Vex {
  bool r, x, b;  // a fourth bit of ModRM.reg, of the index, and of the base or ModRM.rm
  int prefix;
  int source;  // VEX.vvvv
};

// The three bytes from 0xC4 on; the tile instructions have neither W nor L.
std::optional<Vex> decode_vex(const std::uint8_t* code) {
  constexpr int kMap0F38 = 2, kWideOrLong = 0x84;
  if (code[0] != 0xC4 || (code[1] & 0x1F) != kMap0F38 || (code[2] & kWideOrLong) != 0) return {};
  return Vex{(code[1] & 0x80) == 0, (code[1] & 0x40) == 0, (code[1] & 0x20) == 0, code[2] & 3, ~(code[2] >> 3) & 15};
}

struct ModRm {
  int mod, reg, rm;
};
ModRm split(std::uint8_t byte) {
  return {byte >> 6, byte >> 3 & 7, byte & 7};
}

std::int32_t read_displacement(const std::uint8_t* at, int bytes) {
  if (bytes == 1) return static_cast<std::int8_t>(*at);
  std::int32_t value = 0;
  if (bytes == 4) std::memcpy(&value, at, 4);
  return value;
}

// `at` is the byte after ModRM and moves past the operand.
void decode_memory(const Vex& vex, const ModRm& modrm, const std::uint8_t*& at, MemoryOperand& memory) {
  int base = modrm.rm, bytes = modrm.mod == 1 ? 1 : modrm.mod == 2 ? 4 : 0;
  const bool has_sib = modrm.rm == 4;
  if (has_sib) {
    const ModRm sib = split(*at++);  // the same three fields
    memory.scale = sib.mod;
    const int index = sib.reg + (vex.x ? 8 : 0);
    if (index != 4) memory.index = index;  // rsp is no index
    base = sib.rm;
  }
  if (modrm.mod == 0 && base == 5) {
    bytes = 4;
    memory.base = has_sib ? MemoryOperand::kNone : MemoryOperand::kNextInstruction;
  } else {
    memory.base = base + (vex.b ? 8 : 0);
  }
  memory.displacement = read_displacement(at, bytes);
  at += bytes;
}

std::optional<Operation> operation_of(int opcode, const Vex& vex, const ModRm& modrm) {
  const bool in_memory = modrm.mod != 3;
  if (opcode == 0x49) {
    if (in_memory && modrm.reg == 0 && vex.prefix == kNoPrefix) return Operation::load_config;
    if (in_memory && modrm.reg == 0 && vex.prefix == k66) return Operation::store_config;
    if (!in_memory && modrm.reg == 0 && modrm.rm == 0 && vex.prefix == kNoPrefix) return Operation::release;
    if (!in_memory && modrm.rm == 0 && vex.prefix == kF2) return Operation::zero;
  }
  const bool has_sib = in_memory && modrm.rm == 4;
  if (opcode == 0x4B && has_sib) {
    if (vex.prefix == kF2 || vex.prefix == k66) return Operation::load;  // k66: not to be kept in the cache
    if (vex.prefix == kF3) return Operation::store;
  }
  if (opcode == 0x5C && !in_memory && vex.prefix == kF3) return Operation::dot_bf16;
  return {};
}

}  // namespace

std::optional<Instruction> decode(const std::uint8_t* code) {
  Instruction instruction;
  const std::uint8_t* at = code;
  for (; *at == 0x64 || *at == 0x67; ++at)
    (*at == 0x64 ? instruction.memory.thread_segment : instruction.memory.short_address) = true;
  const std::optional<Vex> vex = decode_vex(at);
  if (!vex) return {};
  at += 3;
  const int opcode = *at++;
  if (opcode != 0x49 && opcode != 0x4B && opcode != 0x5C) return {};
  const ModRm modrm = split(*at++);
  const std::optional<Operation> operation = operation_of(opcode, *vex, modrm);
  if (!operation) return {};
  const bool dot = *operation == Operation::dot_bf16;
  if (vex->r || (dot ? vex->b || vex->source > 7 : vex->source != 0)) return {};  // there are eight tiles
  instruction.operation = *operation;
  instruction.tile = modrm.reg;
  instruction.left = modrm.rm;
  instruction.right = vex->source;
  if (modrm.mod != 3) decode_memory(*vex, modrm, at, instruction.memory);
  instruction.length = static_cast<int>(at - code);
  return instruction;
}

std::uint64_t first_byte(const Instruction& instruction, const Registers& registers, const std::uint8_t* code) {
  const MemoryOperand& memory = instruction.memory;
  std::uint64_t address = static_cast<std::uint64_t>(std::int64_t{memory.displacement});
  if (memory.base == MemoryOperand::kNextInstruction)
    address += reinterpret_cast<std::uint64_t>(code + instruction.length);
  else if (memory.base != MemoryOperand::kNone)
    address += registers[static_cast<std::size_t>(memory.base)];
  const bool is_tile = instruction.operation == Operation::load || instruction.operation == Operation::store;
  if (!is_tile) address += static_cast<std::uint64_t>(row_stride(instruction, registers));
  if (memory.short_address) address &= 0xFFFFFFFFU;
  if (memory.thread_segment) {
    std::uint64_t thread = 0;
    __asm__("mov %%fs:0, %0" : "=r"(thread));  // on Linux the first word there is its own address
    address += thread;
  }
  return address;
}

std::int64_t row_stride(const Instruction& instruction, const Registers& registers) {
  const MemoryOperand& memory = instruction.memory;
  if (memory.index == MemoryOperand::kNone) return 0;
  return static_cast<std::int64_t>(registers[static_cast<std::size_t>(memory.index)] << memory.scale);
}

}  // namespace attend::test::amx
