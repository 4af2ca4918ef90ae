// The file of a model that comes in parts, while it grows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "attend/llm/store.hpp"
#include "io/atomic_file.hpp"

namespace attend::llm {

// Lives in the store under ".partial-NAME-HASH" from one run to the next. A list says which parts are in it; what a
// kill left behind them is cut off. For one process at a time.
class JoinedFile {
 public:
  // Opens what an earlier run left of this file, and removes what one left of others under the model's name.
  JoinedFile(const std::filesystem::path& store, const CatalogModel& model);

  bool begins(const ModelSource& source) const;  // what is on the disk are the source's first parts
  // Goes on after what is on the disk, or where that is of another source begins the file again with the next append.
  void use(const ModelSource& source);
  std::size_t parts() const { return parts_.size(); }
  std::int64_t bytes() const;
  // Appends what `content` gives. What it throws leaves the parts before it.
  void append(const std::string& part, const std::function<void(const io::PutBytes&)>& content);
  void discard();  // with its folder

  const std::filesystem::path& folder() const { return folder_; }  // holds the file alone
  std::filesystem::path path() const { return folder_ / file_; }
  std::filesystem::path store() const { return place_.parent_path(); }

 private:
  struct Part {
    std::string name;
    std::int64_t bytes = 0;
  };
  void read_list();
  void write_list();

  std::filesystem::path place_, folder_;
  std::string file_;
  std::vector<Part> parts_, on_disk_;
};

// What an unfinished pull of `name` has left; empty: nothing.
std::vector<std::filesystem::path> partial_folders(const std::filesystem::path& store, const std::string& name);

}  // namespace attend::llm
