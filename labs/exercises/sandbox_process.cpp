// Setting up a sandbox from inside, and ending all that ran in it. System calls only.
#include "labs/exercises/sandbox_process.hpp"

#include <fcntl.h>
#include <linux/capability.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "labs/exercises/landlock.hpp"
#include "labs/exercises/system_calls.hpp"

namespace attend::labs {
namespace {

constexpr int kInput = 0, kOutput = 1, kErrors = 2, kAnswers = 3, kControl = 4, kStatus = 5, kFirstOther = 6;
constexpr int kNamespaces =
    CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP;
constexpr std::int64_t kLargestFile = std::int64_t{64} << 20;  // that a compiler may write
constexpr std::int64_t kMaxDescriptors = 256, kMaxThreads = 256;
constexpr int kLastSignal = 64;

// mount_setattr (Linux 5.12), which older headers lack.
constexpr long kMountSetattr = 442;
constexpr std::uint64_t kReadOnly = 1, kNoSetuid = 2, kNoDevices = 4;
struct MountAttributes {
  std::uint64_t set, clear, propagation, user_namespace;
};

// fork() runs handlers of libraries and takes the allocator's locks; the system call does not.
pid_t clone_process(int namespaces) {
  return static_cast<pid_t>(::syscall(SYS_clone, namespaces | SIGCHLD, nullptr, nullptr, nullptr, nullptr));
}

void report(SandboxReport::Kind kind, std::int32_t value) {
  const SandboxReport one{kind, value};
  (void)!::write(kStatus, &one, sizeof one);
}

[[noreturn]] void give_up(int error) {
  report(SandboxReport::Kind::not_started, error);
  ::_exit(127);
}

bool write_text(const char* path, const char* text) {
  const int file = ::open(path, O_WRONLY | O_CLOEXEC);
  if (file < 0) return false;
  const bool written = ::write(file, text, std::strlen(text)) == static_cast<ssize_t>(std::strlen(text));
  ::close(file);
  return written;
}

// Nothing of the caller stays open: sockets of a server, files of a model.
void arrange_descriptors(const SandboxPlan& plan) {
  const int given[] = {plan.input, plan.output, plan.output, plan.answers, plan.control, plan.status};
  int moved[kFirstOther];
  for (int n = 0; n < kFirstOther; ++n) moved[n] = ::fcntl(given[n], F_DUPFD_CLOEXEC, kFirstOther);
  for (int n = 0; n < kFirstOther; ++n)
    if (moved[n] < 0 || ::dup3(moved[n], n, n >= kControl ? O_CLOEXEC : 0) < 0) ::_exit(127);
  if (::syscall(SYS_close_range, static_cast<unsigned>(kFirstOther), ~0U, 0U) == 0) return;
  rlimit open{};
  (void)::getrlimit(RLIMIT_NOFILE, &open);
  for (rlim_t n = kFirstOther; n < open.rlim_cur; ++n) ::close(static_cast<int>(n));
}

// The caller's handlers write to its own pipes, which the processes of a sandbox must not.
void forget_handlers() {
  struct sigaction standard{};
  standard.sa_handler = SIG_DFL;
  for (int signal = 1; signal <= kLastSignal; ++signal) (void)::sigaction(signal, &standard, nullptr);
}

// "/root/of/sandbox" + "/usr/lib", without an allocation.
struct InRoot {
  char path[4096];
  InRoot(const char* root, const char* target) {
    if (std::snprintf(path, sizeof path, "%s%s", root, target) >= static_cast<int>(sizeof path)) path[0] = '\0';
  }
};

bool restrict_mount(const char* path, std::uint64_t flags, bool all_below) {
  MountAttributes wanted{flags, 0, 0, 0};
  return ::syscall(kMountSetattr, AT_FDCWD, path, all_below ? AT_RECURSIVE : 0, &wanted, sizeof wanted) == 0;
}

bool take_step(const FileView& view, const FileView::Step& step) {
  using Kind = FileView::Step::Kind;
  const InRoot at(view.root.c_str(), step.target.c_str());
  switch (step.kind) {
    case Kind::folder:
      return ::mkdir(at.path, 0755) == 0 || errno == EEXIST;
    case Kind::link:
      return ::symlink(step.source.c_str(), at.path) == 0;
    case Kind::file: {
      const int file = ::open(at.path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
      if (file >= 0) ::close(file);
      return file >= 0;
    }
    case Kind::mount:
      return ::mount(step.source.c_str(), at.path, nullptr, MS_BIND | MS_REC, nullptr) == 0 &&
             restrict_mount(at.path, kReadOnly | kNoSetuid | kNoDevices, true);
    case Kind::device:
      return ::mount(step.source.c_str(), at.path, nullptr, MS_BIND, nullptr) == 0 &&
             restrict_mount(at.path, kReadOnly | kNoSetuid, false);
  }
  return false;
}

// A separate root that contains what the view names, and nothing else. False: the files of the system stay as they are.
bool enter_file_tree(const FileView& view) {
  const char* root = view.root.c_str();
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,nr_inodes=8192,mode=755") != 0)
    return false;
  for (const FileView::Step& step : view.steps)
    if (!take_step(view, step)) return false;
  const InRoot folder(root, view.folder.c_str()), processes(root, "/proc");
  if (::mount(view.folder.c_str(), folder.path, nullptr, MS_BIND, nullptr) != 0 ||
      !restrict_mount(folder.path, (view.writable ? 0 : kReadOnly) | kNoSetuid | kNoDevices, false))
    return false;
  (void)::mkdir(processes.path, 0755);  // refused in some containers; programs do without
  (void)::mount("proc", processes.path, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY, nullptr);
  if (::chdir(root) != 0 || ::syscall(SYS_pivot_root, ".", ".") != 0) return false;
  if (::umount2(".", MNT_DETACH) != 0 || ::chdir("/") != 0 || !restrict_mount("/", kReadOnly, false)) give_up(errno);
  return true;
}

void set_limit(__rlimit_resource resource, std::int64_t most) {
  const rlimit value{static_cast<rlim_t>(most), static_cast<rlim_t>(most)};
  (void)::setrlimit(resource, &value);
}

void set_limits(const SandboxPlan& plan, bool namespaces) {
  set_limit(RLIMIT_CORE, 0);
  set_limit(RLIMIT_AS, plan.limits.memory);
  set_limit(RLIMIT_CPU, static_cast<std::int64_t>(4 * plan.limits.seconds) + 1);
  if (plan.kind == SandboxedProgram::Kind::trusted) return;
  set_limit(RLIMIT_FSIZE, plan.kind == SandboxedProgram::Kind::compiler ? kLargestFile : 0);
  set_limit(RLIMIT_NOFILE, kMaxDescriptors);
  // Elsewhere it counts all processes of the user.
  if (namespaces && plan.kind == SandboxedProgram::Kind::learner) set_limit(RLIMIT_NPROC, kMaxThreads);
}

void drop_capabilities() {
  for (int one = 0; ::prctl(PR_CAPBSET_READ, one, 0, 0, 0) >= 0; ++one) (void)::prctl(PR_CAPBSET_DROP, one, 0, 0, 0);
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2] = {};
  (void)::syscall(SYS_capset, &header, none);
}

bool set_filter(std::vector<sock_filter>& filter) {
  const auto own = static_cast<std::uint32_t>(::getpid());
  for (sock_filter& one : filter)
    if (one.k == kOwnProcess) one.k = own;
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  return ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
}

// The program itself. `held`: the layers so far.
[[noreturn]] void become_program(const SandboxPlan& plan, std::int32_t held) {
  (void)::setpgid(0, 0);
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  ::close(kControl);
  set_limits(plan, (held & kHoldsNamespaces) != 0);
  if (::chdir(plan.view->folder.c_str()) != 0) give_up(errno);
  sigset_t none;
  sigemptyset(&none);
  (void)::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (plan.kind != SandboxedProgram::Kind::trusted) {
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) give_up(errno);
    if (plan.layers.landlock && restrict_files(*plan.view, (held & kHoldsFileTree) != 0)) held |= kHoldsLandlock;
    drop_capabilities();
    report(SandboxReport::Kind::layers, held);
    if (!set_filter(*plan.filter)) give_up(errno);
  }
  ::execve(plan.argv[0], plan.argv, plan.environment);
  // A learner's filter allows to write to open descriptors.
  give_up(errno);
}

// Until the program ends or the caller closes `control`. What else ends meanwhile is a child of a compiler.
int wait_for(pid_t program, int signals) {
  int status = 0;
  for (;;) {
    pollfd watched[] = {{kControl, POLLIN, 0}, {signals, POLLIN, 0}};
    if (::poll(watched, 2, -1) < 0 && errno != EINTR) break;
    signalfd_siginfo ignored;
    if ((watched[1].revents & POLLIN) != 0) (void)!::read(signals, &ignored, sizeof ignored);
    for (pid_t one = 0; (one = ::waitpid(-1, &status, WNOHANG)) > 0;)
      if (one == program) return status;
    if (watched[0].revents != 0) break;
  }
  return SIGKILL;
}

[[noreturn]] void supervise(const SandboxPlan& plan) {
  forget_handlers();
  (void)::setsid();
  arrange_descriptors(plan);
  (void)write_text("/proc/self/oom_score_adj", "1000");  // when memory is short these end first
  std::int32_t held = 0;
  if (plan.layers.namespaces) {
    (void)write_text("/proc/self/setgroups", "deny");
    if (!write_text("/proc/self/uid_map", plan.user_map) || !write_text("/proc/self/gid_map", plan.group_map)) {
      report(SandboxReport::Kind::no_namespaces, errno);
      ::_exit(127);
    }
    held |= kHoldsNamespaces;
    if (plan.layers.file_tree && enter_file_tree(*plan.view)) held |= kHoldsFileTree;
  }
  sigset_t children;
  sigemptyset(&children);
  sigaddset(&children, SIGCHLD);
  const int signals = ::signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK);
  // A trusted program may start a daemon, which is not waited for.
  if (plan.kind != SandboxedProgram::Kind::trusted) (void)::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  const pid_t program = signals < 0 ? -1 : clone_process(0);
  if (program == 0) become_program(plan, held);
  if (program < 0) give_up(errno);
  (void)::setpgid(program, program);  // both sides do it, whichever comes first
  for (const int one : {kInput, kOutput, kErrors, kAnswers}) ::close(one);

  int status = wait_for(program, signals);
  // The first process of a namespace reaches all in it; elsewhere no process can leave the group.
  (void)::kill((held & kHoldsNamespaces) != 0 ? -1 : -program, SIGKILL);
  int one_status = 0;
  for (pid_t one = 0; (one = ::waitpid(-1, &one_status, 0)) > 0 || errno == EINTR;)
    if (one == program) status = one_status;
  report(SandboxReport::Kind::ended, status);
  ::_exit(0);
}

}  // namespace

pid_t start_sandbox(const SandboxPlan& plan) {
  const pid_t process = clone_process(plan.layers.namespaces ? kNamespaces : 0);
  if (process == 0) supervise(plan);
  return process;
}

}  // namespace attend::labs
