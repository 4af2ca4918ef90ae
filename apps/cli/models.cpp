// `attend models`: the models in the user's store, and those that can be pulled: which to choose for what.
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <string>

#include "attend/llm/model.hpp"
#include "attend/llm/store.hpp"
#include "attend/runtime.hpp"
#include "command.hpp"
#include "io/file_error.hpp"
#include "io/readable.hpp"
#include "model_speed.hpp"

namespace attend::cli {
namespace {

std::string bytes(std::int64_t n) {
  return io::readable_bytes(static_cast<double>(n));
}

bool holds(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

void print_stored(const std::string& name) {
  try {
    const std::optional<llm::StoredModel> model = llm::stored_model(name);
    if (model)
      fmt::print("  {:<13} {:<20} {:>9}  {}\n", io::printable(name), model->format, bytes(model->bytes()),
                 io::printable(model->path.string()));
  } catch (const std::exception& error) {
    fmt::print("  {:<13} damaged: {}\n", io::printable(name), io::printable(error.what()));
  }
}

void print_unfinished(const std::vector<std::string>& names) {
  for (const llm::UnfinishedPull& pull : llm::unfinished_pulls()) {
    if (holds(names, pull.name)) continue;
    const std::string name = io::printable(pull.name);
    fmt::print("  {:<13} not whole yet: {}, {}; the same 'attend pull' goes on, 'attend rm {}' removes it\n", name,
               io::counted(pull.parts, "part"), bytes(pull.bytes), name);
  }
}

// Measured if asked for and possible, else an estimate that is called one.
std::string speed_of(const llm::CatalogModel& model, bool here, bool measure, double read_rate) {
  if (here && measure) return "; measured here: " + measured_speed(model.name);
  const double estimate = estimated_tokens_per_second(read_rate, model.bytes);
  if (!model.generates || estimate <= 0) return "";
  return fmt::format("; about {:.2g} tokens/s here (estimate)", estimate);
}

void print_known(const llm::CatalogModel& model, bool here, const std::string& speed) {
  const auto line = [](const std::string& text) { fmt::print("  {:<13} {}\n", "", text); };
  fmt::print("  {:<13} for {}; {}{}\n", model.name, model.use, model.languages, here ? " (it is here)" : "");
  line(fmt::format("{}, {} parameters{}", model.about, io::readable_count(model.parameters),
                   model.limits.empty() ? "" : "; " + model.limits));
  line(fmt::format("{} to fetch, {} on disk, {} of memory{}", bytes(model.sources.front().fetched_bytes()),
                   bytes(model.bytes), bytes(model.memory), speed));
  line(fmt::format("license: {}", model.license));
  if (!model.verified.empty()) line("real weights: " + model.verified);
}

int run_models(bool measure) {
  const llm::ModelInfo inside = llm::model_info(llm::embedded_model());
  fmt::print(
      "inside the program\n  {:<13} {} parameters, {}: tells stories and talks about them, English and Chinese\n\n",
      llm::embedded_model(), io::readable_count(inside.parameters), bytes(inside.file_bytes));
  const std::vector<std::string> names = llm::stored_names();
  fmt::print("{} {}\n", names.empty() ? "no models yet in" : "models in", io::printable(llm::store_folder().string()));
  for (const std::string& name : names) print_stored(name);
  print_unfinished(names);
  fmt::print("\nto be had with 'attend pull NAME'\n");
  const double read_rate = memory_read_rate();
  for (const llm::CatalogModel& model : llm::known_models()) {
    const bool here = holds(names, model.name);
    print_known(model, here, speed_of(model, here, measure, read_rate));
  }
  fmt::print("\nwhere no model is named: {}\n", io::printable(llm::default_model()));
  if (read_rate > 0)
    fmt::print("estimates: {} read {}/s from memory; --speed measures the models that are here\n",
               io::counted(threads(), "thread"), io::readable_bytes(read_rate));
  return kSuccess;
}

}  // namespace

Command add_models(Program& program) {
  auto measure = std::make_shared<bool>(false);
  const Subcommand app = program.add_subcommand(
      "models", "List the models that are here and those that can be pulled: which to choose for what");
  app.add_flag("--speed", *measure, "Run the listed models that are here, and print how fast they are");
  app.footer(
      "Commands that take a model take its name here, or the path of a GGUF file, a Hugging Face folder or a .pth.\n"
      "Memory is with 4,096 tokens of context. A speed marked as an estimate comes from the rate at which this "
      "machine\n"
      "reads memory. \"real weights\": what was compared on this very file (docs/guide/models.md).\n"
      "\nExamples:\n"
      "  attend models\n"
      "  attend models --speed\n"
      "  ATTEND_HOME=/data/attend attend models     another place to keep them");
  return {app, [measure] { return run_models(*measure); }};
}

}  // namespace attend::cli
