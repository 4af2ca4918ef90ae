// The loop of a training run.
#include "llm/train/trainer.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>

#include "attend/llm/model.hpp"
#include "attend/llm/store.hpp"
#include "attend/runtime.hpp"
#include "io/atomic_file.hpp"
#include "io/folder_lock.hpp"
#include "io/readable.hpp"
#include "llm/cache/model_cache.hpp"
#include "llm/model/config_check.hpp"
#include "llm/model/plan.hpp"
#include "llm/runtime/memory.hpp"
#include "llm/train/prepare.hpp"
#include "llm/train/run_folder.hpp"
#include "llm/train/trainable.hpp"
#include "llm/train/trained_model.hpp"

namespace attend::llm {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kCounted = 2'000'000;  // tokens that the n-gram models count
// Inside the engine's operations: packed operands, and attention's backward with its gradients in f32 (measured).
constexpr std::int64_t kPacked = std::int64_t{16} << 20;
constexpr std::int64_t kCode = std::int64_t{2} << 20;  // pages of the program that the first step touches (measured)
constexpr std::int64_t kPromptTokens = 12;             // of a held-out text, before a sample

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string bytes_text(std::int64_t bytes) {
  return io::readable_bytes(static_cast<double>(bytes));
}

void write_text(const fs::path& path, const std::string& text) {
  io::write_file_atomically(path, std::as_bytes(std::span(text)));
}

class Run {
 public:
  Run(const TrainJob& job, const TrainEvents& events, Ranks& ranks);
  void begin();
  TrainResult run();

 private:
  NetworkOptions options(bool frozen) const;
  LoraOptions lora() const;
  TrainMemory plan() const;
  void check_fits(const TrainMemory& memory) const;
  void share_out();
  std::string cut_pairs() const;
  void first_values();
  void one_step();
  void validate();
  void write_best();
  void write_model_to(const fs::path& folder);
  void keep_model();
  void sample();
  void save();
  void set_last_words();
  bool is_first() const { return ranks_.rank() == 0; }  // who writes
  bool is_new() const { return job_.replace || !fs::exists(checkpoint()); }
  std::int64_t parts() const { return parts_of_step(job_.config, ranks_.count()); }
  bool is_time(std::int64_t every) const { return state_.step % every == 0 || state_.step == steps_; }
  std::string settings() const;
  [[noreturn]] void fail(std::int64_t step, const std::string& what) const;
  fs::path checkpoint() const { return job_.run / "checkpoint.safetensors"; }

  TrainJob job_;
  const TrainEvents& events_;
  Ranks& ranks_;
  std::optional<io::FolderLock> lock_;
  Dataset data_;
  std::optional<ModelFiles> start_, teacher_;
  ModelConfig model_;
  DocumentSplit split_;
  std::vector<std::string> shape_ignored_;  // settings that are not those of start_
  std::int64_t steps_ = 0, validate_every_ = 1, save_every_ = 1;
  std::unique_ptr<Network> network_, other_;  // other: the reference of dpo, the teacher of distil
  std::unique_ptr<Trainable> trained_;
  LoraTrainable* adapters_ = nullptr;  // trained_, in lora
  std::unique_ptr<Moments> moments_;
  std::unique_ptr<Objective> objective_;
  std::unique_ptr<Metrics> metrics_;
  TrainState state_;
  double last_loss_ = 0;
  bool saved_ = false;
  std::int64_t kept_step_ = 0;  // the checkpoint's
  Clock::time_point since_ = Clock::now();
  double before_ = 0;  // seconds of earlier sittings
  double rate_ = 0;    // tokens a second, a running mean
};

// A model that is trained further must have been made for the data's tokenizer.
ModelConfig model_of(const TrainJob& job, const Dataset& data, const ModelFiles* start) {
  if (start == nullptr) return model_config(job.config, data.info().vocabulary);
  const ModelConfig& config = start->config();
  if (config.vocabulary < data.info().vocabulary)
    throw InvalidArgument("training: the documents were prepared with a tokenizer of " +
                          std::to_string(data.info().vocabulary) + " tokens, and the model " + start->path().string() +
                          " has " + std::to_string(config.vocabulary) + "; prepare them with the model's tokenizer");
  return config;
}

void check_stage(const TrainJob& job, const Dataset& data) {
  const DataKind kind = data.info().kind;
  const auto refuse = [&](const char* wanted) {
    throw InvalidArgument(std::string("training: ") + name(job.stage) + " needs " + wanted + ", and " +
                          data.folder().string() + " holds " + name(kind));
  };
  if (job.stage == Stage::sft && kind != DataKind::chat) refuse("chat");
  if ((job.stage == Stage::dpo) != (kind == DataKind::preference))
    refuse(job.stage == Stage::dpo ? "preference pairs" : "text or chat");
  if (job.stage == Stage::distil && job.config.teacher.empty())
    throw InvalidArgument("training: distil learns from another model: name it with --teacher");
  if (job.stage != Stage::pretrain && job.stage != Stage::distil && job.start.empty())
    throw InvalidArgument(std::string("training: ") + name(job.stage) + " goes on from a model: say which");
}

// A model that sees both ways learns hidden tokens of plain text.
void check_encoder(const TrainJob& job, const ModelConfig& model, const Dataset& data) {
  if (model.causal) return;
  if (job.stage != Stage::pretrain && job.stage != Stage::lora)
    throw InvalidArgument(std::string("training: ") + name(job.stage) + " of " + model.family +
                          ", which is no model that writes on; expected pretrain or lora");
  if (data.info().kind != DataKind::text)
    throw InvalidArgument("training: " + model.family + " learns hidden words of text, and " + data.folder().string() +
                          " holds " + name(data.info().kind));
}

Run::Run(const TrainJob& job, const TrainEvents& events, Ranks& ranks)
    : job_(job), events_(events), ranks_(ranks), data_(job.data), split_(split_of(data_, job.config)) {
  if (is_first())
    lock_.emplace(job.run,
                  "another training run is at work in " + job.run.string() + ": wait for it, or choose another folder");
  if (job_.replace) check_replaceable(job_);
  check_config(job_.config, job_.start.empty());
  share_out();
  check_stage(job_, data_);
  if (!job_.start.empty()) start_.emplace(find_model(job_.start.string()));
  if (job_.stage == Stage::distil) {
    teacher_.emplace(find_model(job_.config.teacher));
    (void)model_of(job_, data_, &*teacher_);
  }
  model_ = model_of(job_, data_, start_ ? &*start_ : nullptr);
  if (start_) {
    shape_ignored_ = take_shape(model_, job_.shape_given, job_.config);
  } else {
    const Tokenizer tokenizer = tokenizer_from_folder(job_.data);
    if (tokenizer.special().bos) model_.bos = *tokenizer.special().bos;
    if (tokenizer.special().eos) model_.eos = {*tokenizer.special().eos};
  }
  check_config(model_, "the settings of the run");
  check_encoder(job_, model_, data_);
  if (job_.config.ring && !model_.causal)
    throw InvalidArgument("training: " + model_.family +
                          " sees what comes behind a shorter text, so it does not go with "
                          "ring");
  if (data_.info().tokens < job_.config.length)
    throw InvalidArgument("training: the documents hold " + std::to_string(data_.info().tokens) +
                          " tokens, less than one row of " + std::to_string(job_.config.length) +
                          "; bring more text, or a smaller --length");
  if (job_.config.length > model_.context)
    throw InvalidArgument("training: length is " + std::to_string(job_.config.length) + ", and the model is made for " +
                          std::to_string(model_.context));
}

// What must be the same when a run goes on: the data's own facts too, since a folder may be made anew.
std::string Run::settings() const {
  const DataInfo& d = data_.info();
  return job_text(job_) + config_to_json(job_.config) + std::to_string(d.documents) + " documents, " +
         std::to_string(d.tokens) + " tokens, " + std::to_string(split_.held_out_tokens()) + " held out, " +
         std::to_string(d.learnt) + " learnt, " + std::to_string(d.bytes) + " bytes, " + d.tokenizer + "\n";
}

void Run::fail(std::int64_t step, const std::string& what) const {
  const TrainingFailed error(
      "step " + std::to_string(step) + ": " + what + "; " +
      (fs::exists(checkpoint()) ? "the last checkpoint is kept" : "there was no checkpoint yet") +
      "; try a lower rate, or compute f32");
  ranks_.agree([&] { throw error; });  // all ranks have the same numbers
  throw error;
}

// Every rank is to have a part of each batch.
void Run::share_out() {
  TrainConfig& c = job_.config;
  const int ranks = ranks_.count();
  if (c.ring && (job_.stage == Stage::dpo || job_.stage == Stage::distil))
    throw InvalidArgument(std::string("training: ") + name(job_.stage) + " does not go with ring");
  if (c.ring && c.length % (2 * ranks) != 0)
    throw InvalidArgument("training: length is " + std::to_string(c.length) + ", expected a multiple of " +
                          std::to_string(2 * ranks) + ", two pieces of a row for each of the processes");
  if (ranks == 1 || c.ring) return;
  const std::string batch = std::to_string(c.batch), processes = std::to_string(ranks);
  if (c.rows_at_once == 0 && c.batch % ranks != 0)
    throw InvalidArgument("training: batch is " + batch + ", expected a multiple of the " + processes +
                          " processes, or rows_at_once to be given");
  if (parts() < ranks)
    throw InvalidArgument("training: a batch of " + batch + " rows, " + std::to_string(c.rows_at_once) +
                          " at once, has parts for " + std::to_string(parts()) + " processes, and there are " +
                          processes + "; start fewer, or a run with a smaller rows_at_once");
  // Kept with a new run, so that it can go on with any number of processes to the same bits.
  if (is_new()) c.rows_at_once = rows_at_once(c, ranks);
}

NetworkOptions Run::options(bool frozen) const {
  const TrainConfig& c = job_.config;
  return {.compute = c.compute_type(),
          .tokens = tokens_at_once(job_.stage, c, ranks_.count()),
          .recompute = c.recompute,
          .dropout = frozen ? 0 : c.dropout,
          .frozen = frozen,
          .balance = job_.stage == Stage::dpo ? 0 : c.balance};  // dpo's pairs have no mean loss to stand beside
}

LoraOptions Run::lora() const {
  const TrainConfig& c = job_.config;
  return {.rank = c.lora_rank, .alpha = c.lora_alpha, .feed_forward = c.lora_feed_forward};
}

TrainMemory Run::plan() const {
  const ParameterLayout layout(model_);
  const std::int64_t rounded = job_.config.compute_type() == DType::bf16 ? 2 : 0;
  TrainMemory memory;
  memory.program = held_memory();
  memory.parameters = layout.count() * (4 + rounded);
  memory.gradients = (layout.count() + GradientSum::kept(layout.count(), parts(), ranks_.count())) * 4;
  memory.optimiser = layout.count() * 8;
  memory.activations = buffer_bytes(model_, options(false));
  const std::int64_t largest = 4 * model_.hidden * std::max(model_.vocabulary, 2 * model_.feed_forward);
  memory.working = kCode + std::min(kPacked, 8 * largest) +
                   16 * model_.query_width() * tokens_at_once(job_.stage, job_.config, ranks_.count());
  if (job_.stage == Stage::lora) {
    memory.optimiser = LoraAdapters(layout, lora()).layout().count() * 8;
    memory.other = LoraTrainable::bytes(layout, lora());
  }
  if (job_.stage == Stage::dpo || job_.stage == Stage::distil) {
    const ModelConfig& config = teacher_ ? teacher_->config() : model_;
    memory.other = ParameterLayout(config).count() * (4 + rounded) + buffer_bytes(config, options(true));
  }
  // A sample is the model's files, opened beside the network.
  if (job_.config.sample_tokens > 0 && events_.sample && model_.causal)
    memory.other += layout.parameters() * 4 +
                    ModelCache::bytes_for(model_, {.tokens = job_.config.length, .dtype = DType::f32}) +
                    working_memory(model_, kPromptTokens, 1, DType::f32);
  return memory;
}

void Run::check_fits(const TrainMemory& memory) const {
  const auto free = available_memory();
  const std::int64_t wanted = (memory.total() - memory.program) * ranks_.here();
  if (!free || wanted <= *free) return;
  const TrainConfig& c = job_.config;
  const std::int64_t rows = rows_at_once(c, ranks_.count());
  const std::string each = ranks_.here() > 1 ? std::to_string(ranks_.here()) + " processes, each " : std::string();
  throw std::runtime_error("training needs " + bytes_text(wanted) + " (" + each + describe(memory) +
                           ") and the machine has " + bytes_text(*free) + " left; try " +
                           (rows > 1 ? "--rows-at-once " + std::to_string(rows / 2) + ", " : std::string()) +
                           (c.recompute ? "" : "--recompute, ") + "a smaller --length or a smaller model");
}

// dpo compares both documents of a pair from their beginning to `length` at most; "" where all fit.
std::string Run::cut_pairs() const {
  if (job_.stage != Stage::dpo) return "";
  std::int64_t cut = 0;
  const std::int64_t pairs = data_.count() / 2, longest = job_.config.length + 1;
  for (std::int64_t n = 0; n < pairs; ++n)
    cut += std::max(std::ssize(data_.document(2 * n)), std::ssize(data_.document(2 * n + 1))) > longest ? 1 : 0;
  if (cut == 0) return "";
  return io::readable_count(cut) + " of " + io::readable_count(pairs) + " pairs are longer than length, " +
         std::to_string(job_.config.length) + " tokens: what comes behind is left out of the comparison";
}

// The weights that a run begins with, and what it changes of them.
void Run::first_values() {
  const TrainConfig& c = job_.config;
  if (start_)
    load_parameters(*start_, network_->layout(), network_->parameters());
  else
    initialise(network_->layout(), c.seed, network_->parameters());
  network_->changed();
  if (other_) {
    load_parameters(teacher_ ? *teacher_ : *start_, other_->layout(), other_->parameters());
    other_->changed();
  }
  if (job_.stage == Stage::lora) {
    auto adapters = std::make_unique<LoraTrainable>(*network_, lora(), c.seed);
    adapters_ = adapters.get();
    trained_ = std::move(adapters);
  } else {
    trained_ = all_parameters(*network_);
  }
  moments_ = std::make_unique<Moments>(trained_->layout());
  if (is_new()) return;
  state_ = read_checkpoint(checkpoint(), settings(), trained_->layout(), trained_->values(), *moments_);
  trained_->changed();
  objective_->set_state(state_.data);
  before_ = state_.seconds;
  kept_step_ = state_.step;
}

void Run::save() {
  state_.data = objective_->state();
  state_.seconds = before_ + seconds_since(since_);
  ranks_.agree([&] {
    if (is_first())
      write_checkpoint(checkpoint(), state_, settings(), trained_->layout(), trained_->values(), *moments_);
  });
  saved_ = true, kept_step_ = state_.step;
  set_last_words();
}

void Run::set_last_words() {
  const std::string at = "the run stopped behind step " + std::to_string(state_.step);
  ranks_.set_last_words(kept_step_ == 0 ? at + ", before its first checkpoint"
                                        : at + "; its checkpoint is that of step " + std::to_string(kept_step_) +
                                              ", go on with: attend train resume " + job_.run.string());
}

void Run::one_step() {
  const TrainConfig& c = job_.config;
  const auto start = Clock::now();
  const auto seed = c.seed + static_cast<std::uint64_t>(state_.step + 1) * 0x9E3779B97F4A7C15ULL;
  const Measured measured = objective_->step(seed);
  const View gradients = trained_->gradients();
  const double length = gradient_norm(trained_->layout(), gradients);
  if (!std::isfinite(measured.loss) || !std::isfinite(length))
    fail(state_.step + 1, std::string("the ") + (std::isfinite(measured.loss) ? "gradient" : "loss") +
                              " is no number, at " + objective_->last_batch());
  const double factor = c.clip > 0 && length > c.clip ? c.clip / length : 1.0;
  const Schedule schedule{c.rate, c.last_rate, std::llround(c.warm_up * static_cast<double>(steps_)), steps_};
  ++state_.step;
  const double rate = schedule.at(state_.step);
  adamw_step(trained_->layout(), adamw_of(c), rate, state_.step, gradients, factor, *moments_, trained_->values());
  trained_->changed();
  saved_ = false;
  last_loss_ = measured.loss;
  state_.tokens += measured.tokens;
  const double now = static_cast<double>(measured.tokens) / std::max(1e-9, seconds_since(start));
  rate_ = rate_ == 0 ? now : 0.9 * rate_ + 0.1 * now;

  std::vector<std::pair<std::string, double>> values = {{"loss", measured.loss},
                                                        {"gradient", length},
                                                        {"rate", rate},
                                                        {"tokens", static_cast<double>(state_.tokens)},
                                                        {"seconds", before_ + seconds_since(since_)}};
  values.insert(values.end(), measured.more.begin(), measured.more.end());
  if (metrics_) metrics_->add("step", state_.step, values);
  set_last_words();
  if (!events_.step) return;
  StepReport report{state_.step, steps_, measured.loss, length,       rate, state_.tokens,
                    rate_,       0,      held_memory(), measured.more};
  report.seconds_left = static_cast<double>((steps_ - state_.step) * measured.tokens) / rate_;
  events_.step(report);
}

void Run::validate() {
  const Measured measured = objective_->validate();
  if (!std::isfinite(measured.loss)) fail(state_.step, "the validation loss is no number");
  bool best = measured.targets == 0;  // nothing is held out: the newest is the best
  if (measured.targets > 0) {
    best = state_.best_step == 0 || measured.loss < state_.best;
    state_.worse = best ? 0 : state_.worse + 1;
    if (best) state_.best = measured.loss, state_.best_step = state_.step;
    std::vector<std::pair<std::string, double>> values = {{"loss", measured.loss},
                                                          {"tokens", static_cast<double>(state_.tokens)},
                                                          {"seconds", before_ + seconds_since(since_)}};
    values.insert(values.end(), measured.more.begin(), measured.more.end());
    if (metrics_) metrics_->add("validation", state_.step, values);
    if (events_.validation) events_.validation(state_.step, measured, best);
  }
  if (best) ranks_.agree([&] { write_best(); });
}

void Run::write_model_to(const fs::path& folder) {
  write_trained(folder, model_, network_->layout(), network_->parameters(),
                start_ && has_tokenizer(start_->path()) ? start_->path() : job_.data);
}

void Run::keep_model() {
  if (!is_first() || !events_.keep_model) return;
  const fs::path folder = events_.keep_model(state_.step);
  if (folder.empty()) return;
  fs::create_directories(folder.parent_path());
  write_model_to(folder);
}

void Run::write_best() {
  if (!is_first()) return;
  write_model_to(job_.run / "model");
  if (adapters_ != nullptr) adapters_->write(job_.run / "adapter", start_->path().string());
  if (job_.config.sample_tokens > 0 && events_.sample && model_.causal) sample();
}

void Run::sample() {
  Model model = Model::open((job_.run / "model").string(), {.context = job_.config.length, .check_memory = false});
  std::vector<Token> prompt;
  if (!job_.config.prompt.empty()) {
    prompt = model.tokenizer().encode(job_.config.prompt);
  } else {
    const DocumentTokens text = split_.held_out() > 0 ? split_.held_out_part(0) : split_.training_part(0);
    const bool masked = !text.empty() && text.front() < 0;
    for (const std::int32_t stored : text) {
      if (masked ? stored >= 0 : std::ssize(prompt) == kPromptTokens) break;
      prompt.push_back(static_cast<Token>(token_of(stored)));
    }
  }
  GenerateOptions options{.max_tokens = std::min(job_.config.sample_tokens, job_.config.length - std::ssize(prompt))};
  if (prompt.empty() || options.max_tokens < 1) return;
  options.sampling.temperature = 0;
  const Answer answer = model.generate(prompt, options);
  events_.sample(state_.step, model.tokenizer().decode(prompt), answer.text);
}

void Run::begin() {
  const TrainConfig& c = job_.config;
  // First, and its memory given back: it is no part of the plan.
  std::optional<NgramLosses> scale;
  if (events_.scale && split_.held_out() > 0 && job_.stage == Stage::pretrain && model_.causal)
    scale = ngram_losses(split_, data_.info().vocabulary, kCounted);
  give_back_memory();
  const TrainMemory memory = plan();
  check_fits(memory);
  network_ = std::make_unique<Network>(model_, options(false));
  if (job_.stage == Stage::dpo || job_.stage == Stage::distil)
    other_ = std::make_unique<Network>(teacher_ ? teacher_->config() : model_, options(true));
  objective_ = job_.stage == Stage::dpo      ? preference_objective(*network_, *other_, data_, split_, c, ranks_)
               : job_.stage == Stage::distil ? distil_objective(*network_, *other_, split_, c, ranks_)
               : !model_.causal
                   ? masked_objective(*network_, split_, c,
                                      TokenMasker(tokenizer_from_folder(job_.data), c.masked_share), ranks_)
                   : language_objective(*network_, split_, c, ranks_);
  steps_ = c.steps > 0 ? c.steps : objective_->steps(c.epochs);
  validate_every_ = c.validate_every > 0 ? c.validate_every : std::max<std::int64_t>(1, steps_ / 10);
  save_every_ = c.save_every > 0 ? c.save_every : validate_every_;
  first_values();
  if (!is_first()) return;
  if (job_.replace) remove_run(job_.run);
  write_text(job_.run / "config.json", config_to_json(c));
  write_text(job_.run / "run.json", job_text(job_));
  metrics_ = std::make_unique<Metrics>(job_.run / "metrics.jsonl", state_.step);
  if (events_.begin) events_.begin(model_, network_->layout().parameters(), memory, steps_, state_.step);
  if (!shape_ignored_.empty() && events_.note)
    events_.note("ignored: " + io::joined(shape_ignored_, ", ") +
                 "; the model that training starts from keeps its shape");
  if (const std::string cut = cut_pairs(); !cut.empty() && events_.note) events_.note(cut);
  if (events_.held_out) events_.held_out(split_);
  if (scale && events_.scale) events_.scale(*scale, data_.info().nats / static_cast<double>(data_.info().tokens));
  keep_model();
}

TrainResult Run::run() {
  const TrainConfig& c = job_.config;
  since_ = Clock::now();
  const auto no_better = [&] { return c.patience > 0 && state_.worse >= c.patience; };
  while (state_.step < steps_ && !no_better()) {
    if (ranks_.any(events_.stop && events_.stop())) {
      if (!saved_ && state_.step > 0) save();
      return {TrainEnd::stopped, state_, last_loss_, split_.held_out_tokens()};
    }
    one_step();
    keep_model();
    if (is_time(validate_every_)) validate();
    if (is_time(save_every_)) save();
    if (no_better() && !saved_) save();
  }
  return {state_.step < steps_ ? TrainEnd::no_better : TrainEnd::done, state_, last_loss_, split_.held_out_tokens()};
}

}  // namespace

std::string describe(const TrainMemory& m) {
  const auto part = [](std::int64_t bytes, const char* what) { return bytes_text(bytes) + " " + what; };
  std::string text = part(m.parameters, "parameters") + ", " + part(m.gradients, "gradients") + ", " +
                     part(m.optimiser, "optimiser") + ", " + part(m.activations, "activations") + ", " +
                     part(m.working, "work");
  if (m.other > 0) text += ", " + part(m.other, "other models");
  return text;
}

TrainResult train(const TrainJob& job, const TrainEvents& events, Ranks& ranks) {
  const std::vector<std::string> kernels = ranks.texts(kernel_name());
  std::optional<Run> run;
  ranks.agree([&] {
    for (std::size_t r = 1; r < kernels.size(); ++r)
      if (kernels[r] != kernels[0])
        throw InvalidArgument("training: rank 0 computes with " + kernels[0] + " and rank " + std::to_string(r) +
                              " with " + kernels[r] + ", which round differently; give all of them one ATTEND_ISA");
    run.emplace(job, events, ranks);
    run->begin();
  });
  return run->run();
}

TrainResult train(const TrainJob& job, const TrainEvents& events) {
  return train(job, events, *one_process());
}

}  // namespace attend::llm
