// What is half-written: a file or a folder beside its place, under a name of its own.
#pragma once

#include <filesystem>
#include <string>

#include "io/file_error.hpp"

namespace attend::io {

// The FileError of a write that did not come about: at what step, and what the system said.
[[noreturn]] void fail_to_write(const std::filesystem::path& path, const std::string& step, int error);

std::filesystem::path folder_of(const std::filesystem::path& path);  // where a file of this path lies
void sync_folder_of(const std::filesystem::path& path);              // else a rename there may be lost with the power

// ".attend-tmp-PID-N" in the folder of `target`, locked for as long as its maker lives. What a killed one left behind
// is known by its free lock, and goes away when the next one is made in that folder. Gone at the end unless it was
// moved.
class Temporary {
 public:
  enum class Kind { file, folder };
  Temporary(const std::filesystem::path& target, Kind kind);
  ~Temporary();
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;

  const std::filesystem::path& path() const { return path_; }
  int descriptor() const { return fd_; }
  void close_file();  // the lock stays; FileError if the system says that something was not written
  void moved();       // it has another name by now, and is not ours any more

 private:
  bool make(Kind kind);
  bool lock();

  std::filesystem::path target_, path_;
  int fd_ = -1, lock_ = -1;
};

}  // namespace attend::io
