// `attend explore`: serves the explorer for one model on this machine alone, and opens it.
#include <fmt/format.h>

#include <memory>
#include <optional>

#include "apps/server/assets.hpp"
#include "apps/server/explore.hpp"
#include "apps/server/labs_api.hpp"
#include "apps/server/listener.hpp"
#include "apps/server/training.hpp"
#include "attend/llm/store.hpp"
#include "command.hpp"
#include "io/file_error.hpp"
#include "io/readable.hpp"
#include "language_model.hpp"
#include "open_browser.hpp"
#include "progress.hpp"
#include "screen.hpp"

namespace attend::cli {
namespace {

struct Arguments {
  std::string model, compute = "file";
  std::int64_t port = 0, context = 0, memory_mb = 2048;
  bool no_open = false, quiet = false;
};

llm::ModelOptions options_of(const Arguments& a) {
  return {.context = a.context, .compute = llm::compute_named(a.compute)};
}

llm::Model load(const Arguments& a, const std::string& name) {
  std::unique_ptr<ProgressBar> bar;
  llm::ModelOptions options = options_of(a);
  if (!a.quiet) {
    options.progress = [&](std::int64_t done, std::int64_t all) {
      if (!bar) bar = std::make_unique<ProgressBar>("loading", all, "bytes");
      bar->update(done);
    };
    options.warning = [](const std::string& text) { tell("note: " + text); };
  }
  return llm::Model::open(name, options);
}

int run_explore(const Arguments& a) {
  const std::string name = a.model.empty() ? llm::default_model() : a.model;
  server::StopSignals signals;  // from here on Ctrl-C ends it in order
  server::ExploreLimits limits;
  limits.bytes = a.memory_mb << 20;
  server::Log log;
  server::Router router;
  server::add_assets(router);
  const server::TrainingFolder run(name);
  server::ExploredModels models{name, {}};
  if (server::TrainingFolder::is_one(name)) {
    models = run.models(options_of(a));
    run.add_routes(router);
  }
  std::optional<llm::Model> model;
  if (!models.steps || models.steps().empty()) {
    model = load(a, name);  // here, where its progress and its errors are seen
    models.open = [&, others = models.open](std::int64_t step) {
      if (step >= 0) return others(step);
      if (!model) model = load(a, name);  // it was closed in between
      llm::Model opened = std::move(*model);
      model.reset();
      return opened;
    };
  }
  models.labs = true;
  const std::string key = server::new_key();
  server::LabsService labs(key);
  labs.add_routes(router);
  server::Explorer explorer(std::move(models), limits);
  explorer.add_routes(router);
  server::Listener listener(router, {.port = static_cast<std::uint16_t>(a.port)}, log);
  const std::string url = fmt::format("http://127.0.0.1:{}/", listener.port());
  if (a.quiet)
    fmt::print("{}\n", url);
  else
    fmt::print(
        "{} is open to view: {}\nOnly this machine can reach it. Ctrl-C ends it. Labs and a quiz: {}labs.html\n"
        "The page asks for this key where it is to run an exercise that you wrote: {}\n",
        io::printable(name), url, url, key);
  (void)std::fflush(stdout);
  if (!a.no_open) open_browser(url);
  (void)signals.wait();
  (void)listener.drain(std::chrono::milliseconds(500));
  return kSuccess;
}

}  // namespace

Command add_explore(Program& program) {
  auto a = std::make_shared<Arguments>();
  const Subcommand app =
      program.add_subcommand("explore", "See a language model think: every head, every weight, in the browser");
  app.add_option("model", a->model,
                 "A pulled model's name, a .gguf or .pth file, a folder; none: a pulled one, or the one inside")
      .type_name("MODEL");
  app.add_option("--port", a->port, "Listen there; 0: any that is free")
      .check(whole_number(0, 65535))
      .type_name("N")
      .show_default();
  app.add_option("--context", a->context, "Longest text in tokens; 0: what the model was made for")
      .check(whole_number(0, std::int64_t{1} << 24))
      .type_name("N")
      .show_default();
  app.add_option("--memory", a->memory_mb, "All runs hold at most so many MiB, a new one and its computation included")
      .check(whole_number(64, std::int64_t{1} << 20))
      .type_name("MIB")
      .show_default();
  add_compute_argument(app, a->compute);
  app.add_flag("--no-open", a->no_open, "Print the link and open no browser");
  app.add_flag("--quiet", a->quiet, "Print only the link");
  app.footer(
      "Type a text and look: where each head of each layer attends, how one weight comes\n"
      "about, what the model expects next, and what changes when heads, the scale, the mask\n"
      "or positions are switched off. Everything is computed here; nothing leaves the machine.\n"
      "\nExamples:\n"
      "  attend explore                    the model inside, or one that was pulled\n"
      "  attend explore smollm2            attend pull smollm2 brings it\n"
      "  attend explore run                a training run's folder: its model, and its curves where it was watched\n"
      "  attend explore smollm2 --context 32768 --memory 8192    long texts\n"
      "\nThe link's fragment holds the whole state: what you send is what they see.");
  return {app, [a] { return run_explore(*a); }};
}

}  // namespace attend::cli
