// What a watched run leaves in its folder for the explorer's page: models of many of its steps, its samples, what it
// is.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "llm/train/trainer.hpp"

namespace attend::llm {

// Where that lies in a run's folder.
struct WatchFolder {
  std::filesystem::path run;

  std::filesystem::path folder() const { return run / "watch"; }
  std::filesystem::path about_file() const { return folder() / "about.json"; }
  std::filesystem::path samples_file() const { return folder() / "samples.jsonl"; }
  std::filesystem::path model(std::int64_t step) const { return folder() / std::to_string(step); }
  std::vector<std::int64_t> steps() const;  // whose models were kept, rising
};

class WatchedRun {
 public:
  explicit WatchedRun(const TrainJob& job) : job_(job), files_{job.run} {}

  // Hears of the run beside whoever hears of it already. The events must not outlive it.
  void listen(TrainEvents& events);
  // Told before the first step: how many models will be kept, and the bytes of each.
  std::function<void(std::int64_t count, double bytes)> begun{};

 private:
  void begin(std::int64_t parameters, std::int64_t steps, std::int64_t done);
  void write_about();
  void add_sample(std::int64_t step, const std::string& prompt, const std::string& text) const;
  bool is_kept(std::int64_t step) const;

  const TrainJob& job_;
  WatchFolder files_;
  std::int64_t steps_ = 0, parameters_ = 0, first_ = 0;
  std::optional<NgramLosses> scale_;
  double entropy_ = 0;
  std::string text_;  // that the heads are looked at with
};

// A name that is a step and nothing else.
bool is_step(const std::string& name, std::int64_t& step);

}  // namespace attend::llm
