// A program that tries what a sandbox must refuse. usage: labs_attack WORD [ARGUMENT ...]. It writes to descriptor 3.
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

void say(const std::string& line) {
  const std::string text = line + "\n";
  (void)!::write(3, text.data(), text.size());
}

// "NAME 0" if it worked, else with the error.
void tell(const std::string& name, long result) {
  say(name + " " + std::to_string(result < 0 ? errno : 0));
}

void signal_process(const std::string& whom, pid_t pid) {
  siginfo_t info{};
  info.si_code = SI_QUEUE;
  tell("kill." + whom, ::kill(pid, SIGUSR1));
  tell("kill_group." + whom, ::kill(-pid, SIGUSR1));
  tell("tkill." + whom, ::syscall(SYS_tkill, pid, SIGUSR1));
  tell("tgkill." + whom, ::syscall(SYS_tgkill, pid, pid, SIGUSR1));
  tell("rt_sigqueueinfo." + whom, ::syscall(SYS_rt_sigqueueinfo, pid, SIGUSR1, &info));
  tell("rt_tgsigqueueinfo." + whom, ::syscall(SYS_rt_tgsigqueueinfo, pid, pid, SIGUSR1, &info));
  tell("pidfd_open." + whom, ::syscall(434, pid, 0));
  tell("pidfd_send_signal." + whom, ::syscall(424, 3, SIGUSR1, nullptr, 0));
  tell("set_owner." + whom, ::fcntl(3, F_SETOWN, pid));
  int owner = pid;
  tell("ioctl_set_owner." + whom, ::ioctl(3, FIOSETOWN, &owner));
}

void change_process(const std::string& whom, pid_t pid) {
  const rlimit limit{100, 100};
  cpu_set_t processors;
  CPU_ZERO(&processors);
  CPU_SET(0, &processors);
  char byte = 0;
  const iovec here{&byte, 1}, there{&byte, 1};
  tell("prlimit." + whom, ::syscall(SYS_prlimit64, pid, RLIMIT_CORE, &limit, nullptr));
  tell("sched_setaffinity." + whom, ::sched_setaffinity(pid, sizeof processors, &processors));
  tell("setpriority." + whom, ::setpriority(PRIO_PROCESS, static_cast<id_t>(pid), 19));
  tell("process_vm_readv." + whom, ::process_vm_readv(pid, &here, 1, &there, 1, 0));
  tell("ptrace." + whom, ::ptrace(PTRACE_SEIZE, pid, nullptr, nullptr));
}

void leave() {
  tell("setpgid", ::setpgid(0, ::getpgid(::getppid())));
  tell("setpgid_self", ::setpgid(0, 0));
  tell("setsid", ::setsid());
  tell("unshare", ::unshare(CLONE_NEWUSER));
  tell("setns", ::setns(3, 0));
  tell("chroot", ::chroot("."));
  tell("mount", ::mount("none", "/tmp", "tmpfs", 0, nullptr));
  tell("setuid", ::syscall(SYS_setuid, 0));
  tell("capset", ::syscall(SYS_capset, nullptr, nullptr));
  tell("no_dump", ::prctl(PR_SET_PTRACER, -1, 0, 0, 0));
  tell("io_uring", ::syscall(425, 1, nullptr));
  tell("bpf", ::syscall(SYS_bpf, 0, nullptr, 0));
  tell("perf", ::syscall(SYS_perf_event_open, nullptr, 0, -1, -1, 0));
  tell("keyctl", ::syscall(SYS_keyctl, 0, 0));
  tell("inject_terminal", ::ioctl(0, TIOCSTI, "x"));
}

void start_processes() {
  const auto child = [](long pid) {
    if (pid == 0) ::_exit(0);
    return pid;
  };
  tell("fork", child(::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr)));
#ifdef SYS_fork
  tell("plain_fork", child(::syscall(SYS_fork)));
#endif
  tell("clone3", ::syscall(435, nullptr, 0));
}

void talk() {
  int ends[2];
  tell("socket", ::socket(AF_INET, SOCK_STREAM, 0));
  tell("unix_socket", ::socket(AF_UNIX, SOCK_STREAM, 0));
  tell("socketpair", ::socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
  tell("shmget", ::shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600));
  tell("memfd_create", ::syscall(SYS_memfd_create, "x", 0));
}

// In its own folder, where it was started.
void write_files() {
  tell("create", ::open("new", O_WRONLY | O_CREAT, 0600));
  tell("write", ::open("present", O_WRONLY));
  tell("read_write", ::open("present", O_RDWR));
  tell("truncate_open", ::open("present", O_RDONLY | O_TRUNC));
  tell("truncate", ::truncate("present", 0));
  tell("temporary", ::open(".", O_TMPFILE | O_RDWR, 0600));
  tell("openat2", ::syscall(437, AT_FDCWD, "present", nullptr, 0));
  tell("mkfifo", ::mkfifo("fifo", 0600));
  tell("symlink", ::symlink("/dev/zero", "zero"));
  tell("link", ::link("present", "second"));
  tell("mkdir", ::mkdir("folder", 0700));
  tell("rename", ::rename("present", "absent"));
  tell("unlink", ::unlink("present"));
  tell("chmod", ::chmod("present", 0777));
}

[[noreturn]] void flood(int descriptor) {
  const std::string piece(1 << 20, 'x');
  for (;;) (void)!::write(descriptor, piece.data(), piece.size());
}

// A process whose parent has gone, and which holds all descriptors.
void leave_orphan() {
  if (::fork() != 0) return;
  if (::fork() != 0) ::_exit(0);
  (void)::setsid();
  (void)::setpgid(0, 0);
  say("orphan");
  for (;;) ::sleep(1000);
}

void start_threads() {
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 1 << 16);
  int started = 0;
  for (pthread_t one; started < 2000; ++started)
    if (::pthread_create(
            &one, &small,
            [](void*) -> void* {
              for (;;) ::pause();
            },
            nullptr) != 0)
      break;
  say("threads " + std::to_string(started));
}

void read_file(const char* path) {
  char text[4096] = {};
  const int file = ::open(path, O_RDONLY);
  const ssize_t got = file < 0 ? -1 : ::read(file, text, sizeof text - 1);
  tell("read", got);
}

}  // namespace

int main(int count, char** words) {
  const std::string word = count > 1 ? words[1] : "", argument = count > 2 ? words[2] : "";
  if (word == "calls") {
    signal_process("given", std::atoi(argument.c_str()));
    signal_process("parent", ::getppid());
    change_process("given", std::atoi(argument.c_str()));
    change_process("parent", ::getppid());
    leave();
    start_processes();
    talk();
    write_files();
  }
  if (word == "own_signal") {
    (void)::signal(SIGUSR1, SIG_IGN);
    tell("raise", ::raise(SIGUSR1));
    std::abort();
  }
#if defined(__x86_64__)
  if (word == "other_table") {
    long result = 20;  // getpid in the table of 32 bits
    asm volatile("int $0x80" : "+a"(result) : : "memory");
    say("answered");
  }
#endif
  if (word == "loop")
    for (volatile int n = 1; n != 0;) {
    }
  if (word == "leave_and_loop") {
    (void)::setpgid(0, ::getpgid(::getppid()));
    for (;;) ::sleep(1000);
  }
  if (word == "flood_output") flood(1);
  if (word == "flood_errors") flood(2);
  if (word == "flood_answers") flood(3);
  if (word == "print") {
    (void)!::write(1, argument.data(), argument.size());
    say(argument);
  }
  if (word == "copy") {
    char text[65536];
    for (ssize_t got = 0; (got = ::read(0, text, sizeof text)) > 0;)
      (void)!::write(3, text, static_cast<std::size_t>(got));
    (void)::signal(SIGXFSZ, SIG_IGN);
    tell("change_input", ::write(0, "x", 1));
  }
  if (word == "memory") {
    const std::vector<char> all(std::size_t{3} << 30, 1);
    say("allocated " + std::to_string(all[5]));
  }
  if (word == "threads") start_threads();
  if (word == "orphan") leave_orphan();
  if (word == "read") read_file(argument.c_str());
  if (word == "list") tell("list", ::open(argument.c_str(), O_RDONLY | O_DIRECTORY));
  if (word == "write") tell("write", ::open(argument.c_str(), O_WRONLY | O_CREAT, 0600));
  if (word == "large_file") {
    (void)::signal(SIGXFSZ, SIG_IGN);
    const int file = ::open("large", O_WRONLY | O_CREAT, 0600);
    tell("large_file", ::ftruncate(file, 1 << 30));
  }
  if (word == "environment") say(std::getenv("ATTEND_TEST_SECRET") != nullptr ? "secret" : "none");
  if (word == "descriptors") {
    std::string open;
    for (int n = 0; n < 256; ++n)
      if (::fcntl(n, F_GETFD) >= 0) open += " " + std::to_string(n);
    say("open" + open);
  }
  say("end");
  return 0;
}
