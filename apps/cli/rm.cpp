// `attend rm`: takes pulled models out of the user's store.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "attend/llm/store.hpp"
#include "command.hpp"
#include "io/readable.hpp"

namespace attend::cli {
namespace {

int run_rm(const std::vector<std::string>& names) {
  llm::remove_models(names, [](const std::string& name, std::int64_t bytes) {
    fmt::print("{} is gone: {} freed\n", name, io::readable_bytes(static_cast<double>(bytes)));
  });
  return kSuccess;
}

}  // namespace

Command add_rm(Program& program) {
  auto names = std::make_shared<std::vector<std::string>>();
  const Subcommand app = program.add_subcommand("rm", "Remove pulled models");
  app.add_option("names", *names, "Their names, as 'attend models' lists them").required().type_name("MODEL");
  app.footer(
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
