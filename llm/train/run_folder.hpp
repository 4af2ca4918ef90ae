// The files that a training run's folder holds beside its checkpoint and its model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "llm/train/trainer.hpp"

namespace attend::llm {

// run.json: what the run is, as read_run() reads it.
std::string job_text(const TrainJob& job);

// Replacing a run: FileError if the folder holds a checkpoint or run.json of something else, InvalidArgument if one of
// the models that the new run reads is in it.
void check_replaceable(const TrainJob& job);
// Removes what a run left in its folder; its data stay.
void remove_run(const std::filesystem::path& run);

// metrics.jsonl. Lines of steps behind `keep` are dropped first, since they will come again.
class Metrics {
 public:
  Metrics(const std::filesystem::path& path, std::int64_t keep);
  // FileError where the disk is full.
  void add(const std::string& kind, std::int64_t step, const std::vector<std::pair<std::string, double>>& values);

 private:
  std::filesystem::path path_;
  std::ofstream file_;
};

}  // namespace attend::llm
