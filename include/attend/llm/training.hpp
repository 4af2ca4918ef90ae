// Training: texts that are told or brought, tokens made of them, whole stages, and single steps over arrays of tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "attend/export.h"
#include "attend/state_pointer.hpp"

namespace attend::llm {

// The generated stories, a JSON object each: document `number` of a seed, the same on every machine.
struct StoryOptions {
  std::uint64_t seed = 1;
  std::string language = "both";  // en, zh, or both in turn
  std::string format =
      "text";              // text: with questions; chat: a talk about it; pairs: a right and a wrong answer; exercises
  bool relations = false;  // with each text, which word belongs to which
};
ATTEND_API std::string story(const StoryOptions& options, std::int64_t number);

// Called with the stage of the work and its bytes so far; what it throws ends the work, and nothing is left.
using TextProgress = std::function<void(const char* stage, std::int64_t done, std::int64_t all)>;

struct TextInputs {
  // Files of text, JSON (an array, or a value a line) or CSV, also as .gz and .zst, or folders of them. A row is a text
  // or has the fields of one of the forms that `attend prepare --help` lists.
  std::vector<std::filesystem::path> paths;
  std::filesystem::path out;  // a new folder
  std::int64_t vocabulary = 2048;
  bool skip_broken = false, replace = false;
  TextProgress progress{};
  std::string column{};  // the field of a row that is a text; "": the form is found by the names of the fields
};
// Learns a byte-level BPE with ChatML's markers. FileError names file and line of what cannot be read.
ATTEND_API void make_tokenizer(const TextInputs& inputs);

struct PreparedData {
  std::string kind;                                    // text, chat or preference
  std::int64_t documents = 0, tokens = 0, learnt = 0;  // learnt: tokens that are to be predicted
  std::int64_t vocabulary = 0, skipped = 0;
  double nats = 0;                    // information of the documents, where their maker told it; 0: not known
  std::int64_t rows = 0;              // that were read, the skipped ones included
  std::vector<std::string> report{};  // what was read and what was skipped and why, as lines of text
};
// Tokens to train on. `tokenizer`: a model, a folder, or other prepared data; "": one is learnt from the texts.
ATTEND_API PreparedData make_data(const TextInputs& inputs, const std::string& tokenizer = "");

// Stages are "pretrain", "sft", "lora", "dpo" and "distil"; settings are JSON objects with the names that
// `attend train --help` lists. All of a stage's settings with their defaults; `shape` is one of the named ones, or "".
ATTEND_API std::string training_defaults(const std::string& stage, const std::string& shape = "");

struct TrainingRun {
  std::string stage = "pretrain";
  std::string settings = "{}";  // what differs from the defaults
  std::filesystem::path data;   // a folder of make_data
  std::string start;            // a model to go on from; "": weights from nothing
  std::filesystem::path folder;
  bool replace = false;  // the run that is in the folder; data in it stay
  bool watch = false;    // keep what `attend explore FOLDER` shows while it runs: models of many steps, samples
};

struct TrainingStep {
  std::int64_t step = 0, steps = 0, tokens = 0;
  double loss = 0, gradient = 0, rate = 0, tokens_per_second = 0, seconds_left = 0;
  std::vector<std::pair<std::string, double>> more{};  // what else the stage tells: dpo's margin, ...
};

struct TrainingEvents {
  std::function<void(std::int64_t parameters, std::int64_t memory, std::int64_t steps)> begin{};
  std::function<void(const TrainingStep& step)> step{};
  std::function<void(std::int64_t step, double loss)> validation{};
  std::function<void(std::int64_t step, const std::string& prompt, const std::string& text)> sample{};
  std::function<void(const std::string& text)> note{};
  std::function<bool()> stop{};  // asked before every step: true saves and ends the run
};

struct TrainingEnd {
  std::string end;  // "done", "no_better" (patience is over) or "stopped"
  std::int64_t step = 0, tokens = 0;
  std::int64_t held_out = 0;     // tokens held out for validation
  std::int64_t best_step = 0;    // of the best validation; 0: there was none
  double loss = 0;               // of the last step
  std::optional<double> best{};  // the best validation loss; none: there was no validation
};

// Runs to the end; the folder then holds every setting, metrics, the checkpoint, and model/, which Model::open takes.
// InvalidArgument and FileError say what does not fit before anything is allocated; std::runtime_error, with the
// numbers, that the memory does not suffice or that a loss is no number.
ATTEND_API TrainingEnd run_training(const TrainingRun& run, const TrainingEvents& events = {});
// On from the checkpoint of a run that was stopped, to the same bits as if it had not been; a watched one stays so.
ATTEND_API TrainingEnd resume_training(const std::filesystem::path& folder, const TrainingEvents& events = {});

// A model in training, a step at a time, over arrays of tokens. For one thread at a time.
class ATTEND_API Learner {
 public:
  // With the shape and the optimiser that settings of pretrain describe, from random weights; or on from a model.
  static Learner from_nothing(std::int64_t vocabulary, const std::string& settings = "{}");
  static Learner from_model(const std::string& name_or_path, const std::string& settings = "{}");
  ~Learner();
  Learner(Learner&&) noexcept;
  Learner& operator=(Learner&&) noexcept;

  struct Parameter {
    std::string name;
    std::vector<std::int64_t> shape;
    std::span<float> values;
    std::span<const float> gradient;
  };
  // Views that hold until the next call with more tokens than any before. Whoever writes values calls changed() then.
  std::vector<Parameter> parameters();
  void changed();
  std::int64_t parameter_count() const;
  std::int64_t vocabulary() const;
  std::int64_t steps() const;  // of the optimiser, so far

  // Rows of tokens, each a text by itself, and what each token is to predict: -100 for nothing. The mean loss.
  double loss(std::span<const std::int64_t> tokens, std::span<const std::int64_t> targets, std::int64_t rows);
  double gradients(std::span<const std::int64_t> tokens, std::span<const std::int64_t> targets, std::int64_t rows);
  // A step of AdamW with those gradients, shortened to the settings' clip. Gives their length before.
  double update(double rate);

  // A folder that Model::open takes, with the tokenizer of a model, a folder or prepared data.
  void save(const std::filesystem::path& folder, const std::string& tokenizer);

 private:
  struct State;
  explicit Learner(std::unique_ptr<State> state);
  StatePointer<std::unique_ptr<State>> state_;
};

}  // namespace attend::llm
