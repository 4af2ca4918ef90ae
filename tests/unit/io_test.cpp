// The file writer: an atomic write leaves the old file or the new one, nothing else.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "attend/error.hpp"
#include "io/atomic_file.hpp"

// The calls whose failure no file system gives on demand: they go straight to the kernel unless told to fail.
namespace {
int g_fsyncs_until_failure = -1;  // -1: never
bool g_rename_fails = false;
}  // namespace
extern "C" int fsync(int fd) {
  if (g_fsyncs_until_failure >= 0 && g_fsyncs_until_failure-- == 0) {
    errno = EIO;
    return -1;
  }
  return static_cast<int>(syscall(SYS_fsync, fd));
}
extern "C" int rename(const char* from, const char* to) noexcept {
  if (g_rename_fails) {
    errno = EIO;
    return -1;
  }
  return static_cast<int>(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

namespace attend::io {
namespace {

namespace fs = std::filesystem;

std::vector<std::byte> bytes_of(const std::string& text) {
  std::vector<std::byte> bytes(text.size());
  std::transform(text.begin(), text.end(), bytes.begin(), [](char c) { return static_cast<std::byte>(c); });
  return bytes;
}

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string error_of(const fs::path& path, const std::string& text) {
  try {
    write_file_atomically(path, bytes_of(text));
  } catch (const FileError& error) {
    return error.what();
  }
  return "no error";
}

// The result of `call` in a child process without root's rights: started by root, it becomes the user nobody.
template <class F>
std::string without_roots_rights(const F& call) {
  int ends[2];
  if (::pipe(ends) != 0) return "no pipe";
  const pid_t child = ::fork();
  if (child == 0) {
    constexpr uid_t kNobody = 65534;
    const bool left = ::geteuid() != 0 ||
                      (::setresgid(kNobody, kNobody, kNobody) == 0 && ::setresuid(kNobody, kNobody, kNobody) == 0);
    const std::string text = left ? call() : std::string("root cannot become nobody: ") + std::strerror(errno);
    ::_exit(::write(ends[1], text.data(), text.size()) == std::ssize(text) ? 0 : 1);
  }
  ::close(ends[1]);
  std::string text(4096, '\0');
  const ssize_t got = ::read(ends[0], text.data(), text.size());
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  return text;
}

class AtomicFile : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "attend-io-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    file_ = folder_ / "file";
  }
  void TearDown() override {
    g_fsyncs_until_failure = -1;
    g_rename_fails = false;
    fs::remove_all(folder_);
  }
  // No temporary may stay behind.
  std::vector<std::string> listing() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }
  fs::path folder_, file_;
};

using Names = std::vector<std::string>;

TEST_F(AtomicFile, WritesANewFileWithTheModeOfTheUmask) {
  const mode_t old = ::umask(027);
  write_file_atomically(file_, bytes_of("hello"));
  ::umask(old);
  EXPECT_EQ(content_of(file_), "hello");
  EXPECT_EQ(fs::status(file_).permissions(), static_cast<fs::perms>(0640));
  EXPECT_EQ(listing(), Names{"file"});
}

TEST_F(AtomicFile, ReplacesAFileAndKeepsItsMode) {
  write_file_atomically(file_, bytes_of("a long old content"));
  fs::permissions(file_, static_cast<fs::perms>(0600));
  write_file_atomically(file_, bytes_of("new"));
  EXPECT_EQ(content_of(file_), "new");
  EXPECT_EQ(fs::status(file_).permissions(), static_cast<fs::perms>(0600));
  write_file_atomically(file_, {});
  EXPECT_EQ(content_of(file_), "");
}

TEST_F(AtomicFile, FollowsASymbolicLink) {
  write_file_atomically(file_, bytes_of("old"));
  fs::create_symlink("file", folder_ / "link");
  write_file_atomically(folder_ / "link", bytes_of("new"));
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(content_of(file_), "new");
  fs::create_symlink("nowhere", folder_ / "dangling");
  EXPECT_NE(error_of(folder_ / "dangling", "x").find("symbolic link"), std::string::npos);
}

TEST_F(AtomicFile, TakesTheLongestNameAFolderHolds) {
  const fs::path longest = folder_ / std::string(255, 'x');
  write_file_atomically(longest, bytes_of("hello"));
  EXPECT_EQ(content_of(longest), "hello");
  EXPECT_NE(error_of(folder_ / std::string(256, 'x'), "x").find("File name too long"), std::string::npos);
}

TEST_F(AtomicFile, AFailedWriteLeavesTheOldFile) {
  write_file_atomically(file_, bytes_of("old"));
  // A limit on file size stops the write half-way, as a full disk would.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{4096, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string error = error_of(file_, std::string(10000, 'x'));
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(error, "cannot write " + file_.string() + ": writing: File too large");
  EXPECT_EQ(content_of(file_), "old");
  EXPECT_EQ(listing(), Names{"file"});
}

TEST_F(AtomicFile, AFailedSyncOrRenameLeavesTheOldFile) {
  write_file_atomically(file_, bytes_of("old"));
  g_fsyncs_until_failure = 0;
  EXPECT_EQ(error_of(file_, "new"), "cannot write " + file_.string() + ": fsync: Input/output error");
  EXPECT_EQ(content_of(file_), "old");
  g_fsyncs_until_failure = -1;
  g_rename_fails = true;
  EXPECT_EQ(error_of(file_, "new"), "cannot write " + file_.string() + ": renaming: Input/output error");
  EXPECT_EQ(content_of(file_), "old");
  EXPECT_EQ(listing(), Names{"file"});
}

TEST_F(AtomicFile, AFailedSyncOfTheFolderIsToldAndTheNewFileIsWhole) {
  write_file_atomically(file_, bytes_of("old"));
  g_fsyncs_until_failure = 1;
  EXPECT_NE(error_of(file_, "new").find("the new content is in place"), std::string::npos);
  EXPECT_EQ(content_of(file_), "new");
  EXPECT_EQ(listing(), Names{"file"});
}

TEST_F(AtomicFile, SaysWhyAPathCannotBeWritten) {
  write_file_atomically(file_, bytes_of("old"));
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const struct {
    fs::path path;
    const char* reason;
  } cases[] = {
      {folder_ / "missing" / "file", "No such file or directory"},
      {file_ / "below", "Not a directory"},
      {folder_, "it is a folder"},
      {folder_ / "", "expected the name of a file"},
      {"", "expected the name of a file"},
      {pipe, "not a regular file"},
  };
  for (const auto& c : cases) {
    EXPECT_NE(error_of(c.path, "x").find(c.reason), std::string::npos) << c.path << ": " << error_of(c.path, "x");
    try {
      check_can_write(c.path);
      ADD_FAILURE() << "check_can_write let " << c.path << " pass";
    } catch (const FileError& error) {
      EXPECT_NE(std::string(error.what()).find(c.reason), std::string::npos) << error.what();
    }
  }
  EXPECT_NO_THROW(check_can_write(file_));
  EXPECT_NO_THROW(check_can_write(folder_ / "new"));
  EXPECT_EQ(content_of(file_), "old");
}

TEST_F(AtomicFile, AnUnwritableFolderIsAnErrorForRootToo) {
  // Nobody can make a file in /proc.
  if (fs::exists("/proc/self")) {  // a bare chroot has an empty one
    EXPECT_NE(error_of("/proc/attend-io-test", "x").find("making a temporary file in its folder"), std::string::npos);
  }
  // A folder that may be read and entered but not written.
  fs::permissions(folder_, static_cast<fs::perms>(0555));
  EXPECT_EQ(without_roots_rights([&] { return error_of(file_, "x"); }),
            "cannot write " + file_.string() + ": making a temporary file in its folder: Permission denied");
  EXPECT_EQ(without_roots_rights([&] {
              try {
                check_can_write(file_);
              } catch (const FileError& error) {
                return std::string(error.what());
              }
              return std::string("no error");
            }),
            "cannot write " + file_.string() + ": its folder " + folder_.string() + ": Permission denied");
  fs::permissions(folder_, fs::perms::owner_all);
  EXPECT_EQ(listing(), Names{});
}

// A child that is killed at any moment leaves one whole content or the other.
TEST_F(AtomicFile, AKilledWriterLeavesAWholeFile) {
  const std::string contents[] = {std::string(300000, 'a'), std::string(200000, 'b')};
  write_file_atomically(file_, bytes_of(contents[0]));
  for (int round = 0; round < 40; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const auto a = bytes_of(contents[0]), b = bytes_of(contents[1]);
      for (;;) {
        write_file_atomically(file_, b);
        write_file_atomically(file_, a);
      }
    }
    ::usleep(static_cast<useconds_t>(500 + 97 * round));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const std::string found = content_of(file_);
    ASSERT_TRUE(found == contents[0] || found == contents[1]) << "round " << round << ", " << found.size() << " bytes";
  }
}

}  // namespace
}  // namespace attend::io
