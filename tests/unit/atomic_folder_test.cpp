// Folders and files that appear whole, and what is left when their makers are gone.
#include "io/atomic_folder.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>
#include <string>

#include "golden_models.hpp"
#include "io/atomic_file.hpp"

namespace attend::io {
namespace {

namespace fs = std::filesystem;
using llm::test::read_text;
using llm::test::TempFolder;
using llm::test::write_text;

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}
void make_folder(const fs::path& folder, const std::string& text) {
  fs::create_directories(folder);
  write_text(folder / "file", text);
}
std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const FileError& error) {
    return error.what();
  }
  return "";
}

TEST(NewFolder, AppearsWholeOrNotAtAll) {
  const TempFolder place;
  const fs::path target = place.path() / "out";
  {
    NewFolder folder(target, false);
    write_text(folder.path() / "file", "new");
    EXPECT_FALSE(fs::exists(target));
  }
  EXPECT_TRUE(names_in(place.path()).empty());
  {
    NewFolder folder(target.string() + "/", false);
    write_text(folder.path() / "file", "new");
    folder.commit();
  }
  EXPECT_EQ(names_in(place.path()), std::set<std::string>{"out"});
  EXPECT_EQ(read_text(target / "file"), "new");
}

TEST(NewFolder, ReplacesOnlyWhenAsked) {
  const TempFolder place;
  const fs::path target = place.path() / "out";
  make_folder(target, "old");
  EXPECT_NE(error_of([&] { NewFolder(target, false); }).find("is there already"), std::string::npos);
  {
    NewFolder folder(target, true);
    write_text(folder.path() / "file", "new");
    EXPECT_EQ(read_text(target / "file"), "old");
    folder.commit();
  }
  EXPECT_EQ(read_text(target / "file"), "new");
  EXPECT_EQ(names_in(place.path()), std::set<std::string>{"out"});
  // One that came while this was built, even an empty one, is not lost.
  NewFolder late(place.path() / "late", false);
  fs::create_directory(place.path() / "late");
  EXPECT_NE(error_of([&] { late.commit(); }), "");
  for (const char* name : {"", ".", "..", "/", "x/.."}) EXPECT_NE(error_of([&] { NewFolder(name, true); }), "") << name;
  EXPECT_NE(error_of([&] { NewFolder(place.path() / "none" / "out", false); }), "");
}

TEST(MoveFolder, ExchangesOldAndNew) {
  const TempFolder place;
  make_folder(place.path() / "a", "new");
  make_folder(place.path() / "b", "old");
  move_folder_atomically(place.path() / "a", place.path() / "b");
  EXPECT_EQ(read_text(place.path() / "b" / "file"), "new");
  EXPECT_EQ(names_in(place.path()), std::set<std::string>{"b"});
}

TEST(MoveFolder, InTwoStepsCanBeEndedAfterAKill) {
  const TempFolder place;
  const fs::path target = place.path() / "b";
  make_folder(place.path() / "a", "new");
  make_folder(target, "old");
  move_folder_in_two_steps(place.path() / "a", target);
  EXPECT_EQ(read_text(target / "file"), "new");
  EXPECT_EQ(names_in(place.path()), std::set<std::string>{"b"});
  // Killed between the steps: the old one stands aside.
  fs::rename(target, place.path() / ".attend-old-b");
  restore_folder(target);
  EXPECT_EQ(read_text(target / "file"), "new");
  // Killed after them: the old one was not yet removed.
  make_folder(place.path() / ".attend-old-b", "older");
  restore_folder(target);
  EXPECT_EQ(read_text(target / "file"), "new");
  EXPECT_EQ(names_in(place.path()), std::set<std::string>{"b"});
}

// A child that holds a temporary until it is killed.
pid_t child_with_temporary(const fs::path& target, Temporary::Kind kind) {
  int ready[2];
  if (::pipe(ready) != 0) return -1;
  const pid_t child = ::fork();
  if (child == 0) {
    const Temporary temporary(target, kind);
    const char byte = 1;
    (void)!::write(ready[1], &byte, 1);
    for (;;) ::pause();
  }
  char byte = 0;
  (void)!::read(ready[0], &byte, 1);
  ::close(ready[0]);
  ::close(ready[1]);
  return child;
}

TEST(Temporaries, OfTheLivingStayAndOfTheDeadGo) {
  for (const Temporary::Kind kind : {Temporary::Kind::file, Temporary::Kind::folder}) {
    const TempFolder place;
    const fs::path target = place.path() / "out";
    write_text(place.path() / ".attend-tmp-other", "not one of ours");
    const pid_t child = child_with_temporary(target, kind);
    ASSERT_GT(child, 0);
    EXPECT_EQ(names_in(place.path()).size(), 2U);
    write_file_atomically(place.path() / "a", {});
    EXPECT_EQ(names_in(place.path()).size(), 3U) << "that of a living process was removed";
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    write_file_atomically(place.path() / "a", {});
    EXPECT_EQ(names_in(place.path()), (std::set<std::string>{"a", ".attend-tmp-other"}));
  }
}

}  // namespace
}  // namespace attend::io
