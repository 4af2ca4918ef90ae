// The files that a sandboxed program sees: what is mounted for it, and what Landlock lets it open.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "labs/exercises/sandbox.hpp"

namespace attend::labs {

struct FileView {
  struct Step {
    enum class Kind { folder, file, link, mount, device } kind;
    std::string target;  // in the new root: an absolute host path
    std::string source;  // what is mounted there; of a link, where it leads
  };

  std::string root;                     // an empty folder, where the new root is built
  std::vector<Step> steps{};            // in order
  std::vector<std::string> readable{};  // without symbolic links
  std::vector<std::string> devices{};   // may be written, too
  std::string folder{};                 // the program's own
  bool writable = false;                // its folder
};

// Without the root folder, the home folder and the parents of `program.folder`: those are not shown even if asked for.
FileView file_view_of(const SandboxedProgram& program);

}  // namespace attend::labs
