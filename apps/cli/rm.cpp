// `attend rm`: takes pulled models out of the user's store.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "closest.hpp"
#include "command.hpp"
#include "model_store.hpp"
#include "readable.hpp"
#include "store_lock.hpp"

namespace attend::cli {
namespace {

namespace fs = std::filesystem;

std::int64_t bytes_below(const fs::path& folder) {
  std::int64_t sum = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    if (entry->is_regular_file(ignored)) sum += static_cast<std::int64_t>(entry->file_size(ignored));
  }
  return sum;
}

// All of them are there, or none is removed.
void check_names(const std::vector<std::string>& wanted) {
  const std::vector<std::string> names = stored_names();
  for (const std::string& name : wanted) {
    check_model_name(name);
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    throw UsageError(
        fmt::format("there is no model '{}' in {}{}{}", name, store_folder().string(),
                    names.empty() ? ", which is empty" : fmt::format(": it holds {}", fmt::join(names, ", ")),
                    did_you_mean(name, names)));
  }
}

int run_rm(const std::vector<std::string>& names) {
  check_names(names);
  const fs::path store = store_folder();
  const StoreLock lock(store);
  for (const std::string& name : names) {
    const std::int64_t bytes = bytes_below(store / name);
    // Out of sight by one rename; what a kill leaves of it under this name the next pull removes.
    const fs::path gone = store / fmt::format(".pull-{}-rm", ::getpid());
    fs::rename(store / name, gone);
    fs::remove_all(gone);
    fmt::print("{} is gone: {} freed\n", name, readable_bytes(static_cast<double>(bytes)));
  }
  return kSuccess;
}

}  // namespace

Command add_rm(CLI::App& program) {
  auto names = std::make_shared<std::vector<std::string>>();
  CLI::App* app = program.add_subcommand("rm", "Remove pulled models");
  app->add_option("names", *names, "Their names, as 'attend models' lists them")->required()->type_name("MODEL");
  app->footer(
      "Only what 'attend pull' brought is removed, never a file or a folder of your own.\n"
      "\nExamples:\n"
      "  attend rm smollm2\n"
      "  attend rm smollm2 minilm");
  return {app, [names] {
            std::vector<std::string> once = *names;
            std::sort(once.begin(), once.end());
            once.erase(std::unique(once.begin(), once.end()), once.end());
            return run_rm(once);
          }};
}

}  // namespace attend::cli
