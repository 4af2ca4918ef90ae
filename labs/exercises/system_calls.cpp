// The allow-lists and the filter that is made of them.
#include "labs/exercises/system_calls.hpp"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <utility>

namespace attend::labs {
namespace {

#if defined(__x86_64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
constexpr std::uint32_t kArchitecture = 0;
#endif

// Numbers that the headers of an older system lack; they are the same everywhere.
constexpr int kFaccessat2 = 439, kCloseRange = 436, kClone3 = 435, kOpenat2 = 437;
constexpr std::uint32_t kX32 = 0x40000000;                        // x86's other table of numbers
constexpr std::uint32_t kPrSetVma = 0x53564d41;                   // glibc names its memory
constexpr std::uint32_t kTcgets = 0x5401, kTcgets2 = 0x802c542a;  // isatty

// What neither starts nor changes anything outside of the process: its memory, its threads, its clocks, its open
// descriptors, and reading files.
constexpr int kHarmless[] = {
    __NR_read,
    __NR_write,
    __NR_readv,
    __NR_writev,
    __NR_pread64,
    __NR_pwrite64,
    __NR_preadv,
    __NR_pwritev,
    __NR_lseek,
    __NR_close,
    kCloseRange,
    __NR_fstat,
    __NR_newfstatat,
    __NR_statx,
    __NR_statfs,
    __NR_fstatfs,
    __NR_faccessat,
    kFaccessat2,
    __NR_readlinkat,
    __NR_getdents64,
    __NR_getcwd,
    __NR_chdir,
    __NR_fchdir,
    __NR_dup,
    __NR_dup3,
    __NR_pipe2,
    __NR_ppoll,
    __NR_pselect6,
    __NR_epoll_create1,
    __NR_epoll_ctl,
    __NR_epoll_pwait,
    __NR_eventfd2,
    __NR_fadvise64,
    __NR_umask,
    __NR_mmap,
    __NR_munmap,
    __NR_mprotect,
    __NR_mremap,
    __NR_madvise,
    __NR_brk,
    __NR_membarrier,
    __NR_rt_sigaction,
    __NR_rt_sigprocmask,
    __NR_rt_sigreturn,
    __NR_rt_sigpending,
    __NR_rt_sigtimedwait,
    __NR_rt_sigsuspend,
    __NR_sigaltstack,
    __NR_restart_syscall,
    __NR_futex,
    __NR_set_robust_list,
    __NR_set_tid_address,
    __NR_rseq,
    __NR_exit,
    __NR_exit_group,
    __NR_execve,
    __NR_nanosleep,
    __NR_clock_nanosleep,
    __NR_clock_gettime,
    __NR_clock_getres,
    __NR_gettimeofday,
    __NR_times,
    __NR_getitimer,
    __NR_setitimer,
    __NR_getpid,
    __NR_getppid,
    __NR_gettid,
    __NR_getuid,
    __NR_geteuid,
    __NR_getgid,
    __NR_getegid,
    __NR_getresuid,
    __NR_getresgid,
    __NR_getgroups,
    __NR_getpgid,
    __NR_getsid,
    __NR_getrlimit,
    __NR_getrusage,
    __NR_getpriority,
    __NR_capget,
    __NR_uname,
    __NR_sysinfo,
    __NR_getrandom,
    __NR_getcpu,
    __NR_sched_yield,
    __NR_sched_getaffinity,
    __NR_sched_getparam,
    __NR_sched_getscheduler,
    __NR_sched_get_priority_max,
    __NR_sched_get_priority_min,
#ifdef __x86_64__
    __NR_stat,
    __NR_lstat,
    __NR_access,
    __NR_readlink,
    __NR_dup2,
    __NR_pipe,
    __NR_poll,
    __NR_select,
    __NR_epoll_create,
    __NR_epoll_wait,
    __NR_eventfd,
    __NR_getdents,
    __NR_time,
    __NR_getpgrp,
    __NR_arch_prctl,
    __NR_alarm,
    __NR_pause,
#endif
};

// What a compiler does besides: it starts the assembler and the linker, and writes files.
constexpr int kOfCompilers[] = {
    __NR_wait4,     __NR_waitid,   __NR_openat,    __NR_ftruncate,       __NR_fallocate, __NR_fsync,
    __NR_unlinkat,  __NR_renameat, __NR_renameat2, __NR_mkdirat,         __NR_fchmod,    __NR_fchmodat,
    __NR_utimensat, __NR_flock,    __NR_sendfile,  __NR_copy_file_range,
#ifdef __x86_64__
    __NR_open,      __NR_creat,    __NR_unlink,    __NR_rename,          __NR_mkdir,     __NR_rmdir,
    __NR_chmod,     __NR_vfork,    __NR_fork,
#endif
};

// Jumps are relative and at most 255 long: every rule is short and ends with an answer.
class Filter {
 public:
  Filter() {
    load(offsetof(seccomp_data, arch));
    put(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0);
    answer(SECCOMP_RET_KILL_PROCESS);
    load(offsetof(seccomp_data, nr));
#ifdef __x86_64__
    put(BPF_JMP | BPF_JGE | BPF_K, kX32, 0, 1);
    refuse(ENOSYS);
#endif
  }

  void allow(int call) {
    begin(call, 1);
    answer(SECCOMP_RET_ALLOW);
  }

  void refuse(int call, int error) {
    begin(call, 1);
    refuse(error);
  }

  // Arguments are read as 32 bits, as the kernel reads those that are tested here.
  void allow_if_one_of(int call, int argument, std::initializer_list<std::uint32_t> values, int error) {
    begin(call, argument, 2 * values.size() + 1);
    for (const std::uint32_t value : values) {
      put(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1);
      answer(SECCOMP_RET_ALLOW);
    }
    refuse(error);
  }
  void allow_if_without(int call, int argument, std::uint32_t bits) {
    begin(call, argument, 3);
    put(BPF_JMP | BPF_JSET | BPF_K, bits, 1, 0);
    answer(SECCOMP_RET_ALLOW);
    refuse(EPERM);
  }
  void allow_if_with(int call, int argument, std::uint32_t bits) {
    begin(call, argument, 3);
    put(BPF_JMP | BPF_JSET | BPF_K, bits, 0, 1);
    answer(SECCOMP_RET_ALLOW);
    refuse(EPERM);
  }

  std::vector<sock_filter> end() {
    refuse(EPERM);
    return std::move(code_);
  }

 private:
  void put(int code, std::uint32_t k, std::size_t if_true = 0, std::size_t if_false = 0) {
    code_.push_back(
        {static_cast<std::uint16_t>(code), static_cast<std::uint8_t>(if_true), static_cast<std::uint8_t>(if_false), k});
  }
  void load(std::size_t offset) { put(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(offset)); }
  void answer(std::uint32_t value) { put(BPF_RET | BPF_K, value); }
  void refuse(int error) { answer(SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error)); }
  // A rule of `length` more instructions for this call.
  void begin(int call, std::size_t length) {
    put(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call), 0, length);
  }
  // The same for one of its arguments.
  void begin(int call, int argument, std::size_t length) {
    begin(call, length + 1);
    load(offsetof(seccomp_data, args) + static_cast<std::size_t>(argument) * sizeof(std::uint64_t));
  }

  std::vector<sock_filter> code_;
};

// Calls that reach other processes by an argument, or do so with some of their commands (F_SETOWN makes the kernel send
// signals to any process of the user).
void add_tested_calls(Filter& filter) {
  filter.allow_if_one_of(__NR_fcntl, 1, {F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC, F_GETPIPE_SZ},
                         EINVAL);
  filter.allow_if_one_of(__NR_ioctl, 1, {kTcgets, kTcgets2, TIOCGWINSZ, FIONREAD, FIOCLEX, FIONCLEX, FIONBIO}, ENOTTY);
  filter.allow_if_one_of(
      __NR_prctl, 0, {PR_SET_NAME, PR_GET_NAME, PR_GET_DUMPABLE, PR_CAPBSET_READ, PR_GET_SECCOMP, kPrSetVma}, EINVAL);
  filter.allow_if_one_of(__NR_prlimit64, 0, {0, kOwnProcess}, EPERM);
  filter.allow_if_one_of(__NR_tgkill, 0, {kOwnProcess}, EPERM);
  filter.allow_if_one_of(__NR_kill, 0, {kOwnProcess}, EPERM);
  // Callers fall back to calls whose flags are not in memory, where a filter cannot read them.
  filter.refuse(kClone3, ENOSYS);
  filter.refuse(kOpenat2, ENOSYS);
}

}  // namespace

std::vector<sock_filter> system_call_filter(SandboxedProgram::Kind kind) {
  if (kArchitecture == 0) return {};
  Filter filter;
  for (const int call : kHarmless) filter.allow(call);
  add_tested_calls(filter);
  if (kind == SandboxedProgram::Kind::compiler) {
    for (const int call : kOfCompilers) filter.allow(call);
    filter.allow_if_without(
        __NR_clone, 0,
        CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP);
  } else {
    constexpr std::uint32_t kWrites = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC;
    filter.allow_if_without(__NR_openat, 2, kWrites);
#ifdef __x86_64__
    filter.allow_if_without(__NR_open, 1, kWrites);
#endif
    filter.allow_if_with(__NR_clone, 0, CLONE_THREAD);
  }
  return filter.end();
}

}  // namespace attend::labs
