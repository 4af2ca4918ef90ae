// Running a learner's program with limits: rlimits, a process group of its own, and a filter that refuses new
// processes.
#include "labs/exercises/sandbox.hpp"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <thread>

#include "attend/error.hpp"

extern char** environ;

namespace attend::labs {
namespace {

constexpr std::size_t kShownOutput = 8000;  // bytes

// Of what the process may still do: threads, yes; processes, no. RLIMIT_NPROC would not hold root, and counts all of
// the user's processes.
bool refuse_processes() {
  constexpr auto kNumber = static_cast<std::uint32_t>(offsetof(seccomp_data, nr));
  constexpr auto kFlags = static_cast<std::uint32_t>(offsetof(seccomp_data, args));
  constexpr std::uint32_t kRefuse = SECCOMP_RET_ERRNO | EPERM, kUnknown = SECCOMP_RET_ERRNO | ENOSYS;
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kNumber),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1),  // x86's other table of numbers
      BPF_STMT(BPF_RET | BPF_K, kUnknown),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_clone3, 0, 1),  // its flags lie in memory; callers fall back to clone
      BPF_STMT(BPF_RET | BPF_K, kUnknown),
#ifdef __NR_fork
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_fork, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, kRefuse),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_vfork, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, kRefuse),
#endif
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_kill, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, kRefuse),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_ptrace, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, kRefuse),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_clone, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kFlags),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, kRefuse),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{static_cast<unsigned short>(std::size(filter)), filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
}

void limit(int resource, std::int64_t most) {
  const rlimit value{static_cast<rlim_t>(most), static_cast<rlim_t>(most)};
  (void)::setrlimit(static_cast<__rlimit_resource>(resource), &value);
}

// Between fork and exec: system calls alone.
[[noreturn]] void become(char** argv, char** environment, const char* folder, int output, const Limits& limits) {
  (void)::setpgid(0, 0);
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  limit(RLIMIT_CORE, 0);
  limit(RLIMIT_FSIZE, limits.file);
  limit(RLIMIT_AS, limits.memory);
  limit(RLIMIT_CPU, static_cast<std::int64_t>(4 * limits.seconds) + 1);
  const int nothing = ::open("/dev/null", O_RDONLY);
  if (nothing < 0 || ::dup2(nothing, 0) < 0 || ::dup2(output, 1) < 0 || ::dup2(output, 2) < 0) ::_exit(127);
  (void)::syscall(SYS_close_range, 3U, ~0U, 0U);  // sockets of a server, files of a model
  if (::chdir(folder) != 0) ::_exit(127);
  if (!limits.may_start_processes && !refuse_processes()) ::_exit(126);
  ::execve(argv[0], argv, environment);
  ::_exit(127);
}

std::string beginning_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kShownOutput, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

}  // namespace

Outcome run_limited(const std::vector<std::string>& argv, const std::filesystem::path& folder, const Limits& limits) {
  std::vector<std::string> words = argv, settings;
  for (char** one = environ; *one != nullptr; ++one) settings.emplace_back(*one);
  for (const char* one :
       {"OPENBLAS_NUM_THREADS=1", "OMP_NUM_THREADS=1", "MKL_NUM_THREADS=1", "PYTHONDONTWRITEBYTECODE=1"})
    settings.emplace_back(one);
  settings.push_back("TMPDIR=" + folder.string());
  std::vector<char*> arguments, environment;
  for (std::string& word : words) arguments.push_back(word.data());
  for (std::string& one : settings) environment.push_back(one.data());
  arguments.push_back(nullptr);
  environment.push_back(nullptr);
  const std::filesystem::path printed = folder / "output";
  const std::string place = folder.string();
  const int output = ::open(printed.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (output < 0) throw FileError("cannot write in " + place);

  const pid_t child = ::fork();
  if (child == 0) become(arguments.data(), environment.data(), place.c_str(), output, limits);
  ::close(output);
  Outcome outcome;
  if (child < 0) return outcome;
  (void)::setpgid(child, child);  // both sides do it: whoever comes first
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(limits.seconds);
  int status = 0;
  bool late = false;
  while (::waitpid(child, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      late = true;
      (void)::kill(-child, SIGKILL);
      (void)::waitpid(child, &status, 0);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  (void)::kill(-child, SIGKILL);  // whatever else a compiler left
  outcome.output = beginning_of(printed);
  outcome.end = late ? Outcome::End::timed_out : WIFEXITED(status) ? Outcome::End::exited : Outcome::End::signalled;
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  if (outcome.end == Outcome::End::signalled && outcome.code == SIGXCPU) outcome.end = Outcome::End::timed_out;
  return outcome;
}

}  // namespace attend::labs
