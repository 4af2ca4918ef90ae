// One process at a time in a folder.
#include "io/folder_lock.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>

#include "training_files.hpp"

namespace attend::io {
namespace {

using llm::test::refusal_of;
using llm::test::TempFolder;

TEST(FolderLock, RefusesASecondHolder) {
  const TempFolder place;
  const auto folder = place.path() / "not" / "there";
  std::optional<FolderLock> first;
  EXPECT_FALSE(FolderLock::is_held(folder)) << "there is no such folder";
  first.emplace(folder, "");
  EXPECT_TRUE(std::filesystem::is_directory(folder));
  EXPECT_TRUE(FolderLock::is_held(folder));
  EXPECT_EQ(refusal_of([&] { const FolderLock second(folder, "somebody is at work"); }), "somebody is at work");
  EXPECT_EQ(refusal_of([&] { const FolderLock other(place.path(), "busy"); }), "");
  first.reset();
  EXPECT_FALSE(FolderLock::is_held(folder));
  EXPECT_EQ(refusal_of([&] { const FolderLock third(folder, "busy"); }), "");
}

TEST(FolderLock, GoesWithItsProcess) {
  const TempFolder place;
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const FolderLock lock(place.path(), "busy");
    (void)!::write(ready[1], "1", 1);
    for (;;) ::pause();
  }
  char byte = 0;
  (void)!::read(ready[0], &byte, 1);
  EXPECT_EQ(refusal_of([&] { const FolderLock lock(place.path(), "busy"); }), "busy");
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(refusal_of([&] { const FolderLock lock(place.path(), "busy"); }), "");
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(FolderLock, SaysWhereItCannotWrite) {
  const TempFolder place;
  llm::test::write_text(place.path() / "file", "");
  EXPECT_THROW(FolderLock(place.path() / "file", "busy"), std::exception);
}

}  // namespace
}  // namespace attend::io
