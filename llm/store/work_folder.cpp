// Makes and removes the folder that a pull works in.
#include "llm/store/work_folder.hpp"

#include <unistd.h>

#include <string>
#include <system_error>
#include <vector>

#include "io/file_error.hpp"
#include "io/readable.hpp"

namespace attend::llm {

namespace fs = std::filesystem;

void remove_old_work(const fs::path& store) {
  std::vector<fs::path> old;
  for (const fs::directory_entry& entry : fs::directory_iterator(store))
    if (entry.path().filename().string().starts_with(".pull-")) old.push_back(entry.path());
  for (const fs::path& path : old) fs::remove_all(path);
}

WorkFolder::WorkFolder(const fs::path& store) : path_(store / (".pull-" + std::to_string(::getpid()))) {
  fs::create_directory(path_);
}

WorkFolder::~WorkFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void check_space(const fs::path& folder, std::int64_t bytes) {
  std::error_code error;
  const fs::space_info space = fs::space(folder, error);
  if (!error && bytes > 0 && space.available < static_cast<std::uintmax_t>(bytes))
    throw io::FileError(folder.string() + " has " + io::readable_bytes(static_cast<double>(space.available)) +
                        " free, and " + io::readable_bytes(static_cast<double>(bytes)) + " are needed");
}

}  // namespace attend::llm
