// Reads and writes what a run is, and its figures.
#include "llm/train/run_folder.hpp"

#include <cerrno>
#include <cstdlib>
#include <span>
#include <system_error>

#include "io/atomic_file.hpp"
#include "llm/model/config_check.hpp"
#include "llm/model/fields.hpp"

namespace attend::llm {

namespace fs = std::filesystem;

Metrics::Metrics(const fs::path& path, std::int64_t keep) : path_(path) {
  std::string kept;
  std::ifstream old(path);
  for (std::string line; std::getline(old, line);) {
    const auto at = line.find("\"step\": ");
    if (at == std::string::npos || !line.ends_with('}')) continue;  // cut off when the run was
    if (std::strtoll(line.c_str() + at + 8, nullptr, 10) <= keep) kept += line + "\n";
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
  file_ << json.text() << std::endl;  // whole lines reach the system: a killed run keeps them
  if (!file_) throw io::FileError("cannot write " + path_.string() + ": " + std::generic_category().message(errno));
}

std::string job_text(const TrainJob& job) {
  io::JsonObject json(true);
  json.string("stage", name(job.stage));
  json.string("data", fs::absolute(job.data).string());
  json.string("start", job.start.empty() ? "" : fs::absolute(job.start).string());
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
  job.data = f.maybe_string({"data"}).value_or("");
  job.start = f.maybe_string({"start"}).value_or("");
  job.run = run;
  read_config(io::read_json(run / "config.json", kConfigLimits), (run / "config.json").string(), job.config);
  return job;
}

}  // namespace attend::llm
