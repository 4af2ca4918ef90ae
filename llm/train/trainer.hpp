// A training run: its folder, its loop, what it tells.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "llm/train/checkpoint.hpp"
#include "llm/train/ngram.hpp"
#include "llm/train/objective.hpp"
#include "llm/train/train_config.hpp"

namespace attend::llm {

// What a run is: kept in its folder, so that it can go on.
struct TrainJob {
  Stage stage = Stage::pretrain;
  TrainConfig config{};
  std::filesystem::path data;   // a folder that prepare() wrote
  std::filesystem::path start;  // a model to go on from; empty: weights from nothing
  std::filesystem::path run;
  bool replace = false;                    // the run that is in the folder; its data stay
  std::vector<std::string> shape_given{};  // fields of the shape that the caller set; not kept: for a note
};

// Bytes, known before anything is allocated.
struct TrainMemory {
  std::int64_t program = 0;  // what the process holds already
  std::int64_t parameters = 0, gradients = 0, optimiser = 0, activations = 0, working = 0, other = 0;
  std::int64_t total() const { return program + parameters + gradients + optimiser + activations + working + other; }
};
std::string describe(const TrainMemory& memory);

struct StepReport {
  std::int64_t step = 0, steps = 0;
  double loss = 0, gradient = 0, rate = 0;
  std::int64_t tokens = 0;       // of all steps so far
  double tokens_per_second = 0;  // of the last steps
  double seconds_left = 0;
  std::int64_t memory = 0;  // of the process now, in bytes
  std::vector<std::pair<std::string, double>> more{};
};

struct TrainEvents {
  // Before the first step: the model's parameters, the memory, the steps.
  std::function<void(const ModelConfig& model, std::int64_t parameters, const TrainMemory& memory, std::int64_t steps,
                     std::int64_t done)>
      begin{};
  std::function<void(const DocumentSplit& split)> held_out{};              // after begin: what validation measures
  std::function<void(const NgramLosses& losses, double entropy)> scale{};  // entropy: nats a token; 0: not known
  std::function<void(const std::string& text)> note{};                     // what the data lose by the settings
  std::function<void(const StepReport& report)> step{};
  std::function<void(std::int64_t step, const Measured& measured, bool best)> validation{};
  std::function<void(std::int64_t step, const std::string& prompt, const std::string& text)> sample{};
  // Before the first step and behind each: a folder that gets the model as it is then; "": none.
  std::function<std::filesystem::path(std::int64_t step)> keep_model{};
  std::function<bool()> stop{};  // asked before every step: true, on any rank, saves and ends the run
};

enum class TrainEnd { done, no_better, stopped };
struct TrainResult {
  TrainEnd end = TrainEnd::done;
  TrainState state{};
  double last_loss = 0;
  std::int64_t held_out_tokens = 0;  // 0: there was no validation
};

// The loss or the gradient is no number: the run has ended at that step.
struct TrainingFailed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Runs to the end, or on from the folder's checkpoint, unless that is to be replaced. The folder gets config.json
// (every setting), run.json, then metrics.jsonl, checkpoint.safetensors and model/ (the one with the best validation
// loss). InvalidArgument and FileError say what does not fit before anything is allocated; std::runtime_error, with the
// numbers, that memory does not suffice.
TrainResult train(const TrainJob& job, const TrainEvents& events);
// The same over several processes that see one folder: all of them call it, each gets the result, rank 0 alone writes.
// A run that begins so, with rows_at_once 0, keeps batch / ranks as its rows_at_once: whatever number of processes goes
// on with it, the bits are the same. Where an error is known to all ranks, Ranks::failed() says so.
TrainResult train(const TrainJob& job, const TrainEvents& events, Ranks& ranks);
// What a run's folder says it is.
TrainJob read_run(const std::filesystem::path& run);

}  // namespace attend::llm
