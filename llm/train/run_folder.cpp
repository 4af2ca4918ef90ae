// Reads and writes what a run is, and its figures.
#include "llm/train/run_folder.hpp"

#include <cerrno>
#include <cstdlib>
#include <span>
#include <system_error>

#include "attend/error.hpp"
#include "io/atomic_file.hpp"
#include "io/mapped_file.hpp"
#include "llm/model/config_check.hpp"
#include "llm/model/embedded.hpp"
#include "llm/model/fields.hpp"

namespace attend::llm {

namespace fs = std::filesystem;

Metrics::Metrics(const fs::path& path, std::int64_t keep) : path_(path) {
  std::string kept;
  if (fs::exists(path)) {
    const io::MappedFile old(path);
    for (const std::string_view text : io::lines_of(io::as_text(old.bytes()))) {
      const std::string line(text);
      const auto at = line.find("\"step\": ");
      if (at == std::string::npos || !line.ends_with('}')) continue;  // cut off when the run was
      if (std::strtoll(line.c_str() + at + 8, nullptr, 10) <= keep) kept += line + "\n";
    }
  }
  io::write_file_atomically(path, std::as_bytes(std::span(kept)));
  file_.open(path, std::ios::app);
}

void Metrics::add(const std::string& kind, std::int64_t step,
                  const std::vector<std::pair<std::string, double>>& values) {
  io::JsonObject json;
  json.string("kind", kind);
  json.number("step", step);
  for (const auto& [name, value] : values) json.number(name, value);
  (file_ << json.text() << '\n').flush();  // whole lines reach the system: a killed run keeps them
  if (!file_) throw io::FileError("cannot write " + path_.string() + ": " + std::generic_category().message(errno));
}

namespace {

// Relative to the run's folder for what lies in it or beside it, so that they can be moved together.
std::string place_of(const fs::path& path, const fs::path& run) {
  if (path.empty() || is_embedded(path)) return path.string();
  const fs::path whole = fs::absolute(path).lexically_normal();
  fs::path home = fs::absolute(run).lexically_normal();
  if (home.filename().empty()) home = home.parent_path();  // "run/"
  const fs::path relative = whole.lexically_relative(home);
  const bool far = relative.empty() || relative.native().starts_with("../..");
  return far ? whole.string() : relative.string();
}
fs::path place_in(const std::string& place, const fs::path& run) {
  if (place.empty() || is_embedded(place)) return place;
  return (run / place).lexically_normal();  // an absolute one stays itself
}

}  // namespace

std::string job_text(const TrainJob& job) {
  io::JsonObject json(true);
  json.string("stage", name(job.stage));
  json.string("data", place_of(job.data, job.run));
  json.string("start", place_of(job.start, job.run));
  return json.text();
}

TrainJob read_run(const fs::path& run) {
  const fs::path path = run / "run.json";
  if (!fs::exists(path))
    throw io::FileError(run.string() + ": holds no run.json, expected the folder of a training run");
  const io::Json json = io::read_json(path, kConfigLimits);
  const Fields f(json, path.string());
  TrainJob job;
  const std::string stage = f.maybe_string({"stage"}).value_or("");
  bool known = false;
  for (const Stage s : {Stage::pretrain, Stage::sft, Stage::lora, Stage::dpo, Stage::distil})
    if (stage == name(s)) job.stage = s, known = true;
  if (!known) f.refuse("stage", "is " + io::json_quoted(stage) + ", expected pretrain, sft, lora, dpo or distil");
  job.data = place_in(f.maybe_string({"data"}).value_or(""), run);
  job.start = place_in(f.maybe_string({"start"}).value_or(""), run);
  job.run = run;
  read_config(io::read_json(run / "config.json", kConfigLimits), (run / "config.json").string(), job.config);
  return job;
}

void check_replaceable(const TrainJob& job) {
  std::error_code error;
  const fs::path& run = job.run;
  if (!fs::exists(run / "run.json", error) && !fs::exists(run / "checkpoint.safetensors", error)) return;
  (void)read_run(run);
  for (const fs::path& model : {job.start, fs::path(job.config.teacher)}) {
    if (model.empty() || is_embedded(model) || !fs::exists(model, error)) continue;
    const fs::path inside = fs::weakly_canonical(model).lexically_relative(fs::weakly_canonical(run));
    if (!inside.empty() && *inside.begin() != "..")
      throw InvalidArgument("training: the model " + model.string() + " is in the run that is to be replaced, " +
                            run.string() + "; choose another folder for the new run");
  }
}

void remove_run(const fs::path& run) {
  for (const char* file : {"checkpoint.safetensors", "metrics.jsonl", "run.json", "config.json", "loss.png", "loss.svg",
                           "model", "adapter", "watch"})
    fs::remove_all(run / file);
}

}  // namespace attend::llm
