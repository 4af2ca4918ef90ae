// The handler of SIGILL, and the jumps that spare most of its signals. Nothing here allocates or locks anything but its
// own spin lock: it runs inside a signal handler.
#include "support/amx/emulator.hpp"

#include <cpuid.h>
#include <linux/membarrier.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "support/amx/instruction.hpp"
#include "support/amx/tiles.hpp"

// Jumped to from a replaced instruction, with its Site in rax: saves what a call may change, runs it, puts all back.
// The stack holds a Frame from the pushes down; the area for xsave needs 64-byte alignment and a header of zeros. 0xe7
// are x87, SSE, AVX and the three parts of AVX-512.
extern "C" void attend_amx_enter();
__asm__(R"(
.text
.globl attend_amx_enter
.hidden attend_amx_enter
.type attend_amx_enter, @function
attend_amx_enter:
  pushfq
  push %r15
  push %r14
  push %r13
  push %r12
  push %r11
  push %r10
  push %r9
  push %r8
  push %rdi
  push %rsi
  push %rbp
  push %rsp
  push %rbx
  push %rdx
  push %rcx
  push %rax
  mov %rax, %rdi
  mov %rsp, %rsi
  mov %rsp, %rbx
  sub $4096, %rsp
  and $-64, %rsp
  xor %eax, %eax
  mov %rax, 512(%rsp)
  mov %rax, 520(%rsp)
  mov %rax, 528(%rsp)
  mov %rax, 536(%rsp)
  mov %rax, 544(%rsp)
  mov %rax, 552(%rsp)
  mov %rax, 560(%rsp)
  mov %rax, 568(%rsp)
  mov $0xe7, %eax
  xor %edx, %edx
  xsave64 (%rsp)
  cld
  call attend_amx_run
  mov $0xe7, %eax
  xor %edx, %edx
  xrstor64 (%rsp)
  mov %rbx, %rsp
  pop %rax
  pop %rcx
  pop %rdx
  pop %rbx
  add $8, %rsp
  pop %rbp
  pop %rsi
  pop %rdi
  pop %r8
  pop %r9
  pop %r10
  pop %r11
  pop %r12
  pop %r13
  pop %r14
  pop %r15
  popfq
  ret
.size attend_amx_enter, . - attend_amx_enter
)");

namespace attend::test::amx {
namespace {

constexpr std::size_t kSaveBytes = 4096;  // what attend_amx_enter has room for
constexpr std::size_t kRedZone = 128;     // bytes below the stack pointer that a function may use

struct Site {
  Instruction instruction;
  const std::uint8_t* code;
};

// What attend_amx_enter leaves on the stack.
struct Frame {
  Registers registers;  // as pushed: rax is the Site, rsp that of the pushes
  std::uint64_t flags, back, rax;
};

constexpr std::size_t kMostSites = 1024, kJumpBytes = 64;

constinit thread_local Tiles tiles;
std::atomic<long> signals = 0;
struct sigaction before = {};

// One thread at a time replaces an instruction.
std::atomic_flag replacing = ATOMIC_FLAG_INIT;
Site sites[kMostSites];
std::atomic<std::size_t> site_count = 0;  // rises when a site can be read by all
std::uint8_t* jumps_at = nullptr;  // executable memory near the kernels, kJumpBytes a site; nullptr: signals alone

[[noreturn]] void stop(const char* text) {
  constexpr char kOpening[] = "AMX emulator: ";
  const bool written = write(STDERR_FILENO, kOpening, sizeof kOpening - 1) > 0 &&
                       write(STDERR_FILENO, text, std::strlen(text)) > 0 && write(STDERR_FILENO, "\n", 1) > 0;
  static_cast<void>(written);
  std::abort();
}

void execute(const Instruction& instruction, const Registers& registers, const std::uint8_t* code) {
  auto* const memory = reinterpret_cast<std::uint8_t*>(first_byte(instruction, registers, code));
  const std::int64_t stride = row_stride(instruction, registers);
  const char* refused = nullptr;
  switch (instruction.operation) {
    case Operation::load_config:
      refused = tiles.load_config(memory);
      break;
    case Operation::store_config:
      tiles.store_config(memory);
      break;
    case Operation::release:
      tiles.release();
      break;
    case Operation::zero:
      refused = tiles.zero(instruction.tile);
      break;
    case Operation::load:
      refused = tiles.load(instruction.tile, memory, stride);
      break;
    case Operation::store:
      refused = tiles.store(instruction.tile, memory, stride);
      break;
    case Operation::dot_bf16:
      refused = tiles.dot_bf16(instruction.tile, instruction.left, instruction.right);
      break;
  }
  if (refused != nullptr) stop(refused);
}

extern "C" [[gnu::used]] void attend_amx_run(const Site* site, Frame* frame) {
  if (site_count.load(std::memory_order_acquire) == 0) stop("a jump to no site");
  Registers registers = frame->registers;
  registers[0] = frame->rax;
  registers[4] = reinterpret_cast<std::uint64_t>(frame + 1) + kRedZone;
  execute(site->instruction, registers, site->code);
}

// ---- jumps

class Writer {
 public:
  explicit Writer(std::uint8_t* to) : at_(to) {}
  void bytes(std::initializer_list<int> values) {
    for (const int value : values) *at_++ = static_cast<std::uint8_t>(value);
  }
  void word(std::uint64_t value) {
    std::memcpy(at_, &value, sizeof value);
    at_ += sizeof value;
  }
  // As it stands at `from`, five bytes, within two gigabytes.
  void jump(const std::uint8_t* from, const std::uint8_t* to) {
    *at_++ = 0xE9;
    const auto distance = static_cast<std::int32_t>(to - (from + 5));
    std::memcpy(at_, &distance, sizeof distance);
    at_ += sizeof distance;
  }
  const std::uint8_t* at() const { return at_; }

 private:
  std::uint8_t* at_;
};

void write_jump_target(std::uint8_t* to, const Site& site) {
  Writer w(to);
  w.bytes({0x48, 0x8D, 0x64, 0x24, 0x80});                     // lea -128(%rsp), %rsp: past the red zone
  w.bytes({0x50, 0x48, 0xB8});                                 // push %rax; mov $site, %rax
  w.word(reinterpret_cast<std::uint64_t>(&site));              //
  w.bytes({0xFF, 0x15, 0x0E, 0, 0, 0});                        // call *14(%rip): the last word
  w.bytes({0x58, 0x48, 0x8D, 0xA4, 0x24, 0x80, 0, 0, 0});      // pop %rax; lea 128(%rsp), %rsp
  w.jump(w.at(), site.code + site.instruction.length);         //
  w.word(reinterpret_cast<std::uint64_t>(&attend_amx_enter));  //
}

bool near(const std::uint8_t* a, const std::uint8_t* b) {
  return std::abs(a - b) < std::ptrdiff_t{1} << 30;
}

// No core may keep an old byte beside a new one.
bool synchronise_cores() {
  return syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE, 0, 0) == 0;
}

bool protect(const std::uint8_t* code, std::size_t bytes, int protection) {
  constexpr std::uint64_t kPage = 4096;
  const std::uint64_t first = reinterpret_cast<std::uint64_t>(code) & ~(kPage - 1);
  const std::uint64_t end = reinterpret_cast<std::uint64_t>(code) + bytes;
  return mprotect(reinterpret_cast<void*>(first), end - first, protection) == 0;
}

// Past sanitizers, which keep no account of code.
void change_code(const std::uint8_t* code, std::uint8_t byte) {
  __asm__ volatile("movb %1, (%0)" ::"r"(code), "q"(byte) : "memory");
}

// Other threads may stand at the instruction: its first byte is illegal while the others change, and they wait in the
// handler for the end of it.
void replace_by_jump(const std::uint8_t* code, const Instruction& instruction) {
  constexpr std::size_t kBytes = 5;  // of the jump; no instruction is shorter
  const std::size_t number = site_count.load(std::memory_order_relaxed);
  if (jumps_at == nullptr || number == kMostSites || !near(code, jumps_at)) return;
  if (!synchronise_cores() || !protect(code, kBytes, PROT_READ | PROT_WRITE | PROT_EXEC)) return;
  sites[number] = {instruction, code};
  std::uint8_t* const target = jumps_at + kJumpBytes * number;
  write_jump_target(target, sites[number]);
  site_count.store(number + 1, std::memory_order_release);
  constexpr std::uint8_t kIllegal = 0x06;  // push %es, of old
  std::uint8_t jump[kBytes];
  Writer(jump).jump(code, target);
  change_code(code, kIllegal);
  synchronise_cores();
  for (std::size_t n = 1; n < kBytes; ++n) change_code(code + n, jump[n]);
  synchronise_cores();
  change_code(code, jump[0]);
  synchronise_cores();
  protect(code, kBytes, PROT_READ | PROT_EXEC);
}

// Memory within reach of a jump from the code.
std::uint8_t* allocate_near(const std::uint8_t* code) {
  constexpr std::uint64_t kStep = std::uint64_t{1} << 24, kSteps = 60;
  const std::uint64_t start = reinterpret_cast<std::uint64_t>(code) & ~(kStep - 1);
  for (std::uint64_t n = 1; n < kSteps && n * kStep < start; ++n) {
    void* const at = mmap(reinterpret_cast<void*>(start - n * kStep), kMostSites * kJumpBytes,
                          PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (at != MAP_FAILED) return static_cast<std::uint8_t*>(at);
  }
  return nullptr;
}

bool can_jump() {
  std::uint32_t a = 0, bytes = 0, c = 0, d = 0;
  if (!__get_cpuid_count(0xD, 0, &a, &bytes, &c, &d) || bytes > kSaveBytes) return false;
  return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE, 0, 0) == 0;
}

// ---- signals

Registers registers_of(const ucontext_t& context) {
  constexpr int kOrder[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                              REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
  Registers registers;
  for (std::size_t n = 0; n < registers.size(); ++n)
    registers[n] = static_cast<std::uint64_t>(context.uc_mcontext.gregs[kOrder[n]]);
  return registers;
}

void on_illegal_instruction(int, siginfo_t* info, void* context_pointer) {
  const int error = errno;
  auto& context = *static_cast<ucontext_t*>(context_pointer);
  auto& next = context.uc_mcontext.gregs[REG_RIP];
  const auto* const code = reinterpret_cast<const std::uint8_t*>(next);
  signals.fetch_add(1, std::memory_order_relaxed);
  while (replacing.test_and_set(std::memory_order_acquire)) __builtin_ia32_pause();
  const bool by_cpu = info->si_code > 0;
  const bool replaced = by_cpu && *code == 0xE9;  // by another thread, meanwhile: it can go on
  std::optional<Instruction> instruction;
  if (by_cpu && !replaced) instruction = decode(code);
  if (instruction) replace_by_jump(code, *instruction);
  replacing.clear(std::memory_order_release);
  if (instruction) {
    execute(*instruction, registers_of(context), code);
    next += instruction->length;
  } else if (!replaced) {
    sigaction(SIGILL, &before, nullptr);
    if (!by_cpu) raise(SIGILL);  // comes when this handler returns
  }
  errno = error;
}

}  // namespace

bool install_emulator() {
  if (!__builtin_cpu_supports("avx512f")) return false;
  static const bool installed = [] {
    if (can_jump()) jumps_at = allocate_near(reinterpret_cast<const std::uint8_t*>(&install_emulator));
    struct sigaction action = {};
    action.sa_sigaction = on_illegal_instruction;
    action.sa_flags = SA_SIGINFO;
    return sigaction(SIGILL, &action, &before) == 0;
  }();
  return installed;
}

bool replaces_instructions() {
  return jumps_at != nullptr;
}

long signals_taken() {
  return signals;
}

}  // namespace attend::test::amx
