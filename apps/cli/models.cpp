// `attend models`: the models in the user's store, and those that can be pulled.
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <string>

#include "attend/llm/model.hpp"
#include "attend/llm/store.hpp"
#include "command.hpp"
#include "io/file_error.hpp"
#include "io/readable.hpp"

namespace attend::cli {
namespace {

void print_stored(const std::string& name) {
  try {
    const std::optional<llm::StoredModel> model = llm::stored_model(name);
    if (model)
      fmt::print("  {:<12} {:<20} {:>9}  {}\n", io::printable(name), model->format,
                 io::readable_bytes(static_cast<double>(model->bytes())), io::printable(model->path.string()));
  } catch (const std::exception& error) {
    fmt::print("  {:<12} damaged: {}\n", io::printable(name), io::printable(error.what()));
  }
}

int run_models() {
  const llm::ModelInfo inside = llm::model_info(llm::embedded_model());
  fmt::print(
      "inside the program\n  {:<12} {} parameters, {}: tells stories and talks about them, English and Chinese\n\n",
      llm::embedded_model(), io::readable_count(inside.parameters),
      io::readable_bytes(static_cast<double>(inside.file_bytes)));
  const std::vector<std::string> names = llm::stored_names();
  fmt::print("{} {}\n", names.empty() ? "no models yet in" : "models in", io::printable(llm::store_folder().string()));
  for (const std::string& name : names) print_stored(name);
  fmt::print("\nto be had with 'attend pull NAME'\n");
  for (const llm::ModelSource& model : llm::known_models()) {
    const bool here = std::find(names.begin(), names.end(), model.name) != names.end();
    fmt::print("  {:<12} {}, {}{}\n", model.name, model.about,
               io::readable_bytes(static_cast<double>(model.wheel_bytes)), here ? " (it is here)" : "");
  }
  fmt::print("\nwhere no model is named: {}\n", io::printable(llm::default_model()));
  return kSuccess;
}

}  // namespace

Command add_models(Program& program) {
  const Subcommand app = program.add_subcommand("models", "List the models that are here and those that can be pulled");
  app.footer(
      "Commands that take a model take its name here, or the path of a GGUF file, a Hugging Face folder or a .pth.\n"
      "\nExamples:\n"
      "  attend models\n"
      "  ATTEND_HOME=/data/attend attend models     another place to keep them");
  return {app, run_models};
}

}  // namespace attend::cli
