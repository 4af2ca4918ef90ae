// The sandbox of exercises against programs that try to leave it, with each set of layers that a system may have.
#include "labs/exercises/sandbox.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>

#include "io/environment.hpp"
#include "io/temporary.hpp"
#include "labs/exercises/check.hpp"

namespace attend::labs {
namespace {

namespace fs = std::filesystem;
using End = Outcome::End;
using Kind = SandboxedProgram::Kind;

struct Level {
  const char* name;
  Layers layers;
};
const Level kLevels[] = {{"all", {true, true, true}},
                         {"namespaces_and_files", {true, true, false}},
                         {"namespaces_and_landlock", {true, false, true}},
                         {"landlock", {false, false, true}},
                         {"namespaces", {true, false, false}},
                         {"system_calls", {false, false, false}}};

std::atomic<int> signals_received = 0;

class Sandboxed : public ::testing::TestWithParam<Level> {
 protected:
  void SetUp() override {
    std::ofstream(folder() / "present") << "text";
    signals_received = 0;
    (void)::signal(SIGUSR1, [](int) { ++signals_received; });
  }
  void TearDown() override { (void)::signal(SIGUSR1, SIG_DFL); }

  const fs::path& folder() const { return folder_.path(); }

  Outcome run(std::vector<std::string> words, Kind kind = Kind::learner, double seconds = 60) const {
    words.insert(words.begin(), LABS_ATTACK);
    const fs::path program = folder() / "attack";  // its own folder is what it may read
    std::error_code there;
    fs::copy_file(LABS_ATTACK, program, there);
    words.front() = program.string();
    return run_sandboxed({.kind = kind,
                          .argv = std::move(words),
                          .folder = folder(),
                          .readable = {},
                          .input = input,
                          .limits = {.seconds = seconds, .memory = std::int64_t{1} << 30}},
                         GetParam().layers);
  }

  std::string input;

 private:
  io::Temporary folder_{fs::temp_directory_path() / "attend-sandbox-test", io::Temporary::Kind::folder};
};

std::map<std::string, int> errors_of(const std::string& answers) {
  std::map<std::string, int> errors;
  std::istringstream lines(answers);
  int error = 0;
  for (std::string name; lines >> name && name != "end" && lines >> error;) errors[name] = error;
  return errors;
}

// Processes with this word in their command line.
int processes_with(const std::string& word) {
  int count = 0;
  for (const fs::directory_entry& one : fs::directory_iterator("/proc")) {
    std::ifstream file(one.path() / "cmdline");
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    if (text.find(word) != std::string::npos && text.starts_with('/')) ++count;
  }
  return count;
}

TEST_P(Sandboxed, EveryCallThatReachesOutsideIsRefused) {
  const Outcome outcome = run({"calls", std::to_string(::getpid())});
  ASSERT_EQ(outcome.end, End::exited) << outcome.output;
  const std::map<std::string, int> errors = errors_of(outcome.answers);
  EXPECT_GE(errors.size(), 60U) << outcome.answers;
  for (const auto& [name, error] : errors) EXPECT_NE(error, 0) << name << " was not refused";
  EXPECT_EQ(signals_received, 0);
  for (const char* name : {"new", "fifo", "zero", "second", "folder", "absent"})
    EXPECT_FALSE(fs::exists(folder() / name)) << name;
  EXPECT_EQ(fs::file_size(folder() / "present"), 4U);
}

TEST_P(Sandboxed, AProgramMaySignalItselfAndAbort) {
  const Outcome outcome = run({"own_signal"});
  EXPECT_EQ(outcome.answers, "raise 0\n");
  EXPECT_EQ(outcome.end, End::signalled);
  EXPECT_EQ(outcome.code, SIGABRT);
}

#if defined(__x86_64__)
TEST_P(Sandboxed, TheCallsOf32BitProgramsEndIt) {
  const Outcome outcome = run({"other_table"});
  EXPECT_EQ(outcome.end, End::signalled);
  EXPECT_EQ(outcome.code, SIGSYS);
  EXPECT_EQ(outcome.answers, "");
}
#endif

TEST_P(Sandboxed, WhatDoesNotEndIsKilledEvenIfItTriesToLeaveItsGroup) {
  for (const char* word : {"loop", "leave_and_loop"}) {
    const Outcome outcome = run({word, "attend-sandbox-loop"}, Kind::learner, 0.3);
    EXPECT_EQ(outcome.end, End::timed_out) << word;
    EXPECT_EQ(processes_with("attend-sandbox-loop"), 0) << word;
  }
}

TEST_P(Sandboxed, AnOrphanOfACompilerIsKilled) {
  const Outcome outcome = run({"orphan", "attend-sandbox-orphan"}, Kind::compiler);
  EXPECT_EQ(outcome.end, End::exited);
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(processes_with("attend-sandbox-orphan"), 0);
}

TEST_P(Sandboxed, EndlessOutputIsStoppedAndBounded) {
  for (const char* word : {"flood_output", "flood_errors", "flood_answers"}) {
    const Outcome outcome = run({word});
    EXPECT_EQ(outcome.end, End::flooded) << word;
    EXPECT_LE(outcome.output.size(), 8000U);
    EXPECT_LE(outcome.answers.size(), kMaxWritten);
  }
}

TEST_P(Sandboxed, BothStreamsArriveWhole) {
  const std::string line(7000, 'y');
  const Outcome outcome = run({"print", line});
  EXPECT_EQ(outcome.output, line);
  EXPECT_EQ(outcome.answers, line + "\nend\n");
}

TEST_P(Sandboxed, InputOfAnySizeArrivesAndCannotBeChanged) {
  input = std::string(1 << 20, 'i') + "\n";
  const Outcome outcome = run({"copy"});
  ASSERT_GT(outcome.answers.size(), input.size());
  EXPECT_TRUE(outcome.answers.starts_with(input));
  EXPECT_NE(errors_of(outcome.answers.substr(input.size())).at("change_input"), 0);
}

TEST_P(Sandboxed, MemoryIsBounded) {
  const Outcome outcome = run({"memory"});
  EXPECT_EQ(outcome.end, End::signalled) << outcome.answers;  // of bad_alloc, which is not caught
  EXPECT_EQ(outcome.answers, "");
}

// The kernel does not count for root.
TEST_P(Sandboxed, ThreadsAreBoundedWhereTheUserHasANamespace) {
  const Outcome outcome = run({"threads"});
  ASSERT_TRUE(outcome.answers.starts_with("threads ")) << outcome.answers;
  const int started = std::atoi(outcome.answers.c_str() + 8);
  EXPECT_GE(started, 16);
  if (outcome.held.namespaces && ::geteuid() != 0) {
    EXPECT_LE(started, 256);
  }
}

TEST_P(Sandboxed, OtherFilesAreNotReadWhereALayerOfFilesHolds) {
  const io::Temporary other(fs::temp_directory_path() / "attend-sandbox-secret", io::Temporary::Kind::folder);
  const fs::path secret = other.path() / "secret";
  std::ofstream(secret) << "secret";
  const std::string own_environment = "/proc/" + std::to_string(::getpid()) + "/environ";
  for (const std::string& path : {secret.string(), std::string("/etc/passwd"), own_environment}) {
    const Outcome outcome = run({"read", path});
    if (outcome.held.file_tree || outcome.held.landlock) {
      EXPECT_NE(errors_of(outcome.answers).at("read"), 0) << path;
    }
  }
  EXPECT_EQ(errors_of(run({"read", (folder() / "present").string()}).answers).at("read"), 0);
}

TEST_P(Sandboxed, TheHomeFolderIsNotShownEvenIfAskedFor) {
  const io::Temporary home(fs::temp_directory_path() / "attend-sandbox-home", io::Temporary::Kind::folder);
  std::ofstream(home.path() / "secret") << "secret";
  fs::create_directory(home.path() / "packages");
  std::ofstream(home.path() / "packages" / "module") << "module";
  const std::string before(io::environment("HOME"));
  ::setenv("HOME", home.path().c_str(), 1);
  fs::copy_file(LABS_ATTACK, folder() / "attack");
  const auto read = [&](const fs::path& path) {
    return run_sandboxed({.argv = {(folder() / "attack").string(), "read", path.string()},
                          .folder = folder(),
                          .readable = {"/", home.path().string(), home.path().parent_path().string(),
                                       (home.path() / "packages").string()}},
                         GetParam().layers);
  };
  const std::unique_ptr<const char, void (*)(const char*)> restored(
      before.c_str(), [](const char* path) { (void)::setenv("HOME", path, 1); });
  const Outcome secret = read(home.path() / "secret");
  if (secret.held.file_tree || secret.held.landlock) {
    EXPECT_NE(errors_of(secret.answers).at("read"), 0);
  }
  EXPECT_EQ(errors_of(read(home.path() / "packages" / "module").answers).at("read"), 0);
}

TEST_P(Sandboxed, ACompilerWritesInItsFolderOnly) {
  const io::Temporary other(fs::temp_directory_path() / "attend-sandbox-other", io::Temporary::Kind::folder);
  const Outcome inside = run({"write", (folder() / "made").string()}, Kind::compiler),
                outside = run({"write", (other.path() / "made").string()}, Kind::compiler);
  EXPECT_EQ(errors_of(inside.answers).at("write"), 0);
  EXPECT_TRUE(fs::exists(folder() / "made"));
  if (outside.held.file_tree || outside.held.landlock) {
    EXPECT_NE(errors_of(outside.answers).at("write"), 0);
    EXPECT_FALSE(fs::exists(other.path() / "made"));
  }
  EXPECT_NE(errors_of(run({"large_file"}, Kind::compiler).answers).at("large_file"), 0);
}

TEST_P(Sandboxed, SecretsOfTheEnvironmentAndOpenFilesAreNotPassedOn) {
  ::setenv("ATTEND_TEST_SECRET", "secret", 1);
  const std::ifstream open("/etc/hostname");
  EXPECT_EQ(run({"environment"}).answers, "none\nend\n");
  EXPECT_EQ(run({"descriptors"}).answers, "open 0 1 2 3\nend\n");
  ::unsetenv("ATTEND_TEST_SECRET");
}

TEST_P(Sandboxed, WhatHoldsIsAtMostWhatWasTried) {
  const Layers tried = GetParam().layers, held = run({"print", "x"}).held;
  EXPECT_LE(held.namespaces, tried.namespaces);
  EXPECT_LE(held.file_tree, tried.file_tree && tried.namespaces);
  EXPECT_LE(held.landlock, tried.landlock);
}

// Asked of the system in other ways: a layer that it has must hold.
TEST_P(Sandboxed, WhatTheSystemHasIsUsed) {
  const auto works = [](const char* command) { return std::system(command) == 0; };
  const Layers tried = GetParam().layers, held = run({"print", "x"}).held;
  if (::syscall(444, nullptr, 0, 1) >= 1) {  // the version of Landlock
    EXPECT_EQ(held.landlock, tried.landlock);
  }
  if (works("unshare --user --pid --net --ipc --uts --cgroup --mount --fork true 2>/dev/null")) {
    EXPECT_EQ(held.namespaces, tried.namespaces);
  }
  // Of what a file tree needs mount_setattr is the youngest.
  if (works("unshare --user --map-root-user --mount mount -t tmpfs none /mnt 2>/dev/null") &&
      (::syscall(442, -1, nullptr, 0, nullptr, 0) == 0 || errno != ENOSYS)) {
    EXPECT_EQ(held.file_tree, tried.file_tree);
  }
}

TEST_P(Sandboxed, AProgramThatIsNotThereIsAnError) {
  const Outcome outcome =
      run_sandboxed({.argv = {(folder() / "nothing").string()}, .folder = folder()}, GetParam().layers);
  EXPECT_EQ(outcome.end, End::not_started);
  EXPECT_EQ(outcome.code, ENOENT);
}

TEST_P(Sandboxed, AnExceptionWhileWaitingKillsIt) {
  struct Stop {};
  fs::copy_file(LABS_ATTACK, folder() / "attack");
  EXPECT_THROW(
      run_sandboxed({.argv = {(folder() / "attack").string(), "loop", "attend-sandbox-stop"}, .folder = folder()},
                    GetParam().layers, [] { throw Stop{}; }),
      Stop);
  EXPECT_EQ(processes_with("attend-sandbox-stop"), 0);
}

TEST_P(Sandboxed, ExercisesInBothLanguagesAreGraded) {
  const fs::path files = fs::path(LABS_FILES);
  for (const char* name : {"right/softmax_plain.py", "right/several.cpp"}) {
    const CheckResult result = check_file(files / name, {.seconds = 120, .layers = GetParam().layers});
    EXPECT_TRUE(result.all_right()) << name << ": " << result.failure.en;
    ASSERT_TRUE(result.sandbox.has_value());
    EXPECT_LE(result.sandbox->landlock, GetParam().layers.landlock);
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, Sandboxed, ::testing::ValuesIn(kLevels),
                         [](const auto& level) { return std::string(level.param.name); });

}  // namespace
}  // namespace attend::labs
