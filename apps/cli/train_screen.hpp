// What a training run shows while it runs, and the pictures of its losses.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "llm/train/trainer.hpp"

namespace attend::cli {

// Lines on standard output for what stays, and one that is drawn again and again on a terminal's standard error.
class TrainScreen {
 public:
  TrainScreen();
  ~TrainScreen();
  TrainScreen(const TrainScreen&) = delete;
  TrainScreen& operator=(const TrainScreen&) = delete;

  void begin(const llm::ModelConfig& model, std::int64_t parameters, const llm::TrainMemory& memory, std::int64_t steps,
             std::int64_t done);
  void held_out(const llm::DocumentSplit& split);
  void scale(const llm::NgramLosses& losses, double entropy);
  void note(const std::string& text);
  void step(const llm::StepReport& report);
  void validation(std::int64_t step, const llm::Measured& measured, bool best);
  void sample(const std::string& prompt, const std::string& text);

 private:
  void clear();
  bool terminal_, drawn_ = false;
  std::chrono::steady_clock::time_point next_;
};

// The losses of runs against their steps, side by side: PATH.svg and PATH.png. Runs without a loss are left out.
void draw_losses(const std::vector<std::filesystem::path>& runs, const std::filesystem::path& path);

// The numbers of one kind of line in a run's metrics.jsonl: (step, value).
std::vector<std::pair<double, double>> metric(const std::filesystem::path& run, const std::string& kind,
                                              const std::string& name);

}  // namespace attend::cli
