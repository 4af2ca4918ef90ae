// One process at a time changes a folder.
#pragma once

#include <filesystem>
#include <string>

namespace attend::io {

// What others left half-done in the folder can then be removed. The folder is made if it is not there. FileError with
// the text `busy` if another process holds it; the lock goes when its process goes.
class FolderLock {
 public:
  FolderLock(const std::filesystem::path& folder, const std::string& busy);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  static bool is_held(const std::filesystem::path& folder);  // by anybody, now

 private:
  int fd_ = -1;
};

}  // namespace attend::io
