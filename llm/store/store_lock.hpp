// One command at a time changes the store of models.
#pragma once

#include <filesystem>

namespace attend::llm {

// What others left half-done in the store can then be removed. FileError if another one is at work.
class StoreLock {
 public:
  explicit StoreLock(const std::filesystem::path& store);
  ~StoreLock();
  StoreLock(const StoreLock&) = delete;
  StoreLock& operator=(const StoreLock&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace attend::llm
