// Where a pull works inside the store, and whether the disk has room for it.
#pragma once

#include <cstdint>
#include <filesystem>

namespace attend::llm {

// Removes what killed runs have left of their work folders.
void remove_old_work(const std::filesystem::path& store);

// A folder in the store that goes away with all that is in it.
class WorkFolder {
 public:
  explicit WorkFolder(const std::filesystem::path& store);
  ~WorkFolder();
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// FileError, before anything is fetched or written, if the disk has less.
void check_space(const std::filesystem::path& folder, std::int64_t bytes);

}  // namespace attend::llm
