// The caller's side of a sandbox: what it is given, and reading what comes of it until it ends or its time is over.
#include "labs/exercises/sandbox.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <optional>
#include <string_view>
#include <utility>

#include "attend/error.hpp"
#include "io/environment.hpp"
#include "labs/exercises/sandbox_process.hpp"
#include "labs/exercises/system_calls.hpp"

namespace attend::labs {
namespace {

using Clock = std::chrono::steady_clock;
using Kind = SandboxedProgram::Kind;

constexpr std::size_t kShownOutput = 8000;  // bytes
constexpr int kWaitMilliseconds = 100;
constexpr int kInnerUser = 65534;  // no user of the sandbox is root: then an exec would give capabilities

// The rest may hold secrets.
constexpr const char* kPassedOn[] = {"PATH",         "HOME",       "LANG",           "LANGUAGE",          "LC_ALL",
                                     "LC_CTYPE",     "TZ",         "PYTHONPATH",     "LD_LIBRARY_PATH",   "CPATH",
                                     "LIBRARY_PATH", "PYTHONHOME", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH"};

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int value) : value_(value) {}
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~Descriptor() { close(); }

  int get() const { return value_; }
  bool open() const { return value_ >= 0; }
  void close() {
    if (value_ >= 0) ::close(std::exchange(value_, -1));
  }

 private:
  int value_ = -1;
};

struct Pipe {
  Descriptor reads, writes;
};

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw FileError("cannot run a program: no file descriptors are left");
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

// In memory, complete before anything starts, and not to be changed: neither side waits for the other.
Descriptor input_of(const std::string& text) {
  Descriptor file(::memfd_create("input", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  for (std::string_view rest = text; !rest.empty();) {
    const ssize_t written = ::write(file.get(), rest.data(), rest.size());
    if (written < 0 && errno != EINTR) throw FileError("cannot run a program: no memory for its input");
    rest.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(written, 0)));
  }
  (void)::lseek(file.get(), 0, SEEK_SET);
  (void)::fcntl(file.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL);
  return file;
}

std::vector<std::string> environment_of(const SandboxedProgram& program) {
  std::vector<std::string> list;
  const auto pass = [&](const char* name) {
    if (const char* value = std::getenv(name)) list.push_back(fmt::format("{}={}", name, value));
  };
  if (program.kind == Kind::trusted)
    for (char** one = environ; *one != nullptr; ++one) list.emplace_back(*one);
  else
    for (const char* name : kPassedOn) pass(name);
  for (const char* one : {"OPENBLAS_NUM_THREADS=1", "OMP_NUM_THREADS=1", "MKL_NUM_THREADS=1",
                          "CUDA_VISIBLE_DEVICES=", "PYTHONDONTWRITEBYTECODE=1", "CCACHE_DISABLE=1", "USER=learner"})
    list.emplace_back(one);
  list.push_back("TMPDIR=" + program.folder.string());
  return list;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (std::string& text : texts) list.push_back(text.data());
  list.push_back(nullptr);
  return list;
}

// A started sandbox; nothing of it is left when this ends.
class Sandbox {
 public:
  Sandbox(const SandboxedProgram& program, const FileView& view, const Layers& layers) {
    Pipe output = make_pipe(), answers = make_pipe(), control = make_pipe(), status = make_pipe();
    const Descriptor input = input_of(program.input);
    std::vector<std::string> words = program.argv, settings = environment_of(program);
    std::vector<char*> arguments = pointers_to(words), environment = pointers_to(settings);
    std::vector<sock_filter> filter = system_call_filter(program.kind);
    const std::string user = fmt::format("{} {} 1", kInnerUser, ::geteuid()),
                      group = fmt::format("{} {} 1", kInnerUser, ::getegid());
    const SandboxPlan plan{.argv = arguments.data(),
                           .environment = environment.data(),
                           .view = &view,
                           .filter = &filter,
                           .kind = program.kind,
                           .limits = program.limits,
                           .layers = layers,
                           .user_map = user.c_str(),
                           .group_map = group.c_str(),
                           .input = input.get(),
                           .output = output.writes.get(),
                           .answers = answers.writes.get(),
                           .control = control.reads.get(),
                           .status = status.writes.get()};
    sigset_t all, before;
    sigfillset(&all);
    (void)::pthread_sigmask(SIG_SETMASK, &all, &before);
    process_ = start_sandbox(plan);
    error_ = process_ < 0 ? errno : 0;
    (void)::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    for (const Pipe* one : {&output, &answers, &status}) (void)::fcntl(one->reads.get(), F_SETFL, O_NONBLOCK);
    output_ = std::move(output.reads);
    answers_ = std::move(answers.reads);
    status_ = std::move(status.reads);
    control_ = std::move(control.writes);
  }

  ~Sandbox() {
    control_.close();
    while (process_ > 0 && ::waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }

  Sandbox(const Sandbox&) = delete;
  Sandbox& operator=(const Sandbox&) = delete;

  bool started() const { return process_ > 0; }
  int error() const { return error_; }

  // Reads until the sandbox has ended. False: it could not have its namespaces.
  bool read_all(double seconds, const std::function<void()>& on_wait, Outcome& outcome) {
    const auto deadline =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    for (bool over = false; !over;) {
      std::array<pollfd, 3> watched{pollfd{status_.get(), POLLIN, 0}, pollfd{output_.get(), POLLIN, 0},
                                    pollfd{answers_.get(), POLLIN, 0}};
      (void)::poll(watched.data(), watched.size(), kWaitMilliseconds);
      if (on_wait) on_wait();
      over = read_status();
      take(output_, outcome.output, kShownOutput, printed_);
      take(answers_, outcome.answers, kMaxWritten, answered_);
      if (std::max(printed_, answered_) > kMaxWritten) stop(Outcome::End::flooded);
      if (Clock::now() > deadline) stop(Outcome::End::timed_out);
    }
    conclude(outcome);
    return !no_namespaces_;
  }

 private:
  void stop(Outcome::End why) {
    if (!stopped_ && !ended_) stopped_ = why;
    control_.close();
  }

  // Whatever there is now. The first `kept` bytes stay; all are counted.
  static void take(Descriptor& from, std::string& text, std::size_t kept, std::size_t& count) {
    std::array<char, 65536> piece;
    while (from.open() && count <= kMaxWritten) {
      const ssize_t got = ::read(from.get(), piece.data(), piece.size());
      if (got < 0 && errno == EINTR) continue;
      if (got == 0) from.close();
      if (got <= 0) return;
      const auto size = static_cast<std::size_t>(got);
      count += size;
      if (text.size() < kept) text.append(piece.data(), std::min(size, kept - text.size()));
    }
  }

  // True: the sandbox has ended.
  bool read_status() {
    SandboxReport report{};
    for (;;) {
      const ssize_t got = ::read(status_.get(), &report, sizeof report);
      if (got < 0) return errno != EAGAIN && errno != EINTR;
      if (got != sizeof report) return true;
      switch (report.kind) {
        case SandboxReport::Kind::no_namespaces:
          no_namespaces_ = true;
          break;
        case SandboxReport::Kind::layers:
          held_ = report.value;
          break;
        case SandboxReport::Kind::not_started:
          error_ = report.value;
          break;
        case SandboxReport::Kind::ended:
          ended_ = report.value;
          break;
      }
    }
  }

  void conclude(Outcome& outcome) const {
    outcome.held = {(held_ & kHoldsNamespaces) != 0, (held_ & kHoldsFileTree) != 0, (held_ & kHoldsLandlock) != 0};
    outcome.code = error_;
    if (error_ != 0) return;
    const int status = ended_.value_or(SIGKILL);  // the sandbox itself was killed, as when memory is short
    outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status);
    outcome.end = stopped_ ? *stopped_ : WIFEXITED(status) ? Outcome::End::exited : Outcome::End::signalled;
    if (outcome.end == Outcome::End::signalled && outcome.code == SIGXCPU) outcome.end = Outcome::End::timed_out;
  }

  pid_t process_ = -1;
  int error_ = 0;
  Descriptor output_, answers_, status_, control_;
  std::size_t printed_ = 0, answered_ = 0;
  std::int32_t held_ = 0;
  bool no_namespaces_ = false;
  std::optional<int> ended_;
  std::optional<Outcome::End> stopped_;
};

}  // namespace

Outcome run_sandboxed(const SandboxedProgram& program, const Layers& layers, const std::function<void()>& on_wait) {
  const FileView view = file_view_of(program);
  std::filesystem::create_directories(view.root);
  Layers tried = program.kind == Kind::trusted ? Layers{false, false, false} : layers;
  for (;;) {
    Outcome outcome;
    Sandbox sandbox(program, view, tried);
    if (sandbox.started() && sandbox.read_all(program.limits.seconds, on_wait, outcome)) return outcome;
    outcome.code = sandbox.error();
    if (!tried.namespaces) return outcome;
    tried.namespaces = false;
  }
}

}  // namespace attend::labs
