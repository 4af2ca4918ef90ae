// `attend compare`: training runs side by side.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "command.hpp"
#include "draw/columns.hpp"
#include "io/file_error.hpp"
#include "io/readable.hpp"
#include "llm/model/files.hpp"
#include "llm/train/parameters.hpp"
#include "llm/train/trainer.hpp"
#include "train_screen.hpp"

namespace attend::cli {
namespace {

struct Arguments {
  std::vector<std::string> runs;
  std::string out;
};

// A row a fact, a column a run.
struct Table {
  std::vector<std::pair<std::string, std::vector<std::string>>> rows;

  void print() const {
    std::vector<int> widths(rows.front().second.size() + 1, 0);
    for (const auto& [name, cells] : rows) {
      widths[0] = std::max(widths[0], draw::columns_of(name));
      for (std::size_t i = 0; i < cells.size(); ++i)
        widths[i + 1] = std::max(widths[i + 1], draw::columns_of(cells[i]));
    }
    const auto padded = [](const std::string& text, int width, bool right) {
      const std::string space(static_cast<std::size_t>(std::max(0, width - draw::columns_of(text))), ' ');
      return right ? space + text : text + space;
    };
    for (const auto& [name, cells] : rows) {
      std::string line = padded(name, widths[0], false);
      for (std::size_t i = 0; i < cells.size(); ++i) line += "  " + padded(cells[i], widths[i + 1], true);
      fmt::print("{}\n", line);
    }
  }
};

// Keys and values of a token, in f16 as `generate` keeps them.
std::int64_t cache_bytes(const llm::ModelConfig& c) {
  return c.layers * 2 * c.kv_width() * 2;
}

std::string speed_of(const std::filesystem::path& run) {
  const auto tokens = metric(run, "step", "tokens"), seconds = metric(run, "step", "seconds");
  if (seconds.empty() || seconds.back().second <= 0) return "-";
  return io::readable_count(static_cast<std::int64_t>(tokens.back().second / seconds.back().second));
}

int run_compare(const Arguments& a) {
  std::vector<std::filesystem::path> paths(a.runs.begin(), a.runs.end());
  std::vector<llm::TrainJob> jobs;
  for (const auto& path : paths) {
    llm::TrainJob& job = jobs.emplace_back(llm::read_run(path));
    // The shape is the model's: settings may leave parts of it open, and those of a run that started from a model too.
    if (const auto model = job.run / "model"; std::filesystem::exists(model))
      (void)llm::take_shape(llm::ModelFiles(model).config(), {}, job.config);
  }
  Table table;
  const auto row = [&](const std::string& name, const auto& cell) {
    std::vector<std::string> cells;
    for (const llm::TrainJob& job : jobs) cells.push_back(cell(job));
    table.rows.emplace_back(name, std::move(cells));
  };
  row("run", [](const llm::TrainJob& job) {
    const std::filesystem::path path = job.run.lexically_normal();
    return io::printable((path.has_filename() ? path : path.parent_path()).filename().string());
  });
  row("stage", [](const llm::TrainJob& job) { return std::string(name(job.stage)); });
  row("steps", [](const llm::TrainJob& job) { return std::to_string(metric(job.run, "step", "loss").size()); });
  row("training loss", [](const llm::TrainJob& job) {
    const auto losses = metric(job.run, "step", "loss");
    return losses.empty() ? "-" : fmt::format("{:.4f}", losses.back().second);
  });
  row("best validation loss", [](const llm::TrainJob& job) {
    double best = -1;
    for (const auto& [step, loss] : metric(job.run, "validation", "loss"))
      best = best < 0 ? loss : std::min(best, loss);
    return best < 0 ? "-" : fmt::format("{:.4f}", best);
  });
  row("tokens/s", [](const llm::TrainJob& job) { return speed_of(job.run); });
  const auto from_model = [](const llm::TrainJob& job, const auto& get) -> std::string {
    if (!std::filesystem::exists(job.run / "model")) return "-";
    return get(llm::ModelFiles(job.run / "model").config());
  };
  row("parameters", [&](const llm::TrainJob& job) {
    return from_model(
        job, [](const llm::ModelConfig& c) { return io::readable_count(llm::ParameterLayout(c).parameters()); });
  });
  row("KV bytes a token", [&](const llm::TrainJob& job) {
    return from_model(job, [](const llm::ModelConfig& c) { return io::readable_count(cache_bytes(c)); });
  });
  // The settings in which they differ.
  llm::visit_fields(jobs.front().config, [&](const char* field, const auto&, auto&&...) {
    std::vector<std::string> cells;
    for (const llm::TrainJob& job : jobs)
      llm::visit_fields(job.config, [&](const char* other, const auto& value, auto&&...) {
        if (std::string_view(field) == other) cells.push_back(io::printable(fmt::format("{}", value)));
      });
    if (std::any_of(cells.begin(), cells.end(), [&](const std::string& cell) { return cell != cells.front(); }))
      table.rows.emplace_back(field, std::move(cells));
  });
  table.print();
  if (a.out.empty()) return kSuccess;
  draw_losses(paths, a.out);
  fmt::print("{}.png and {}.svg: the validation losses\n", io::printable(a.out), io::printable(a.out));
  return kSuccess;
}

}  // namespace

Command add_compare(Program& program) {
  auto a = std::make_shared<Arguments>();
  const Subcommand app = program.add_subcommand("compare", "Training runs side by side: losses, speed, settings");
  app.add_option("runs", a->runs, "Folders of training runs").required().type_name("RUN");
  app.add_option("--out,-o", a->out, "Draw the losses as PATH.png and PATH.svg").type_name("PATH");
  app.footer(
      "Below the figures stand the settings in which the runs differ.\n"
      "\nExamples:\n"
      "  attend compare mha gqa                two runs that differ in kv_heads\n"
      "  attend compare run-* -o losses        with a picture");
  return {app, [a] { return run_compare(*a); }};
}

}  // namespace attend::cli
